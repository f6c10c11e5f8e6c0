"""Does a kernel that waits for its stream, or an event behind one, hold up other streams? One GPU, 40 s.

Stream B has a long kernel of one block (torch.cuda._sleep), perhaps a record of an event, a second kernel that also
waits for a product of stream A, and perhaps another record. Stream A has four more products. Times are events of
stream A only, in milliseconds; nothing with a time is recorded in B.
"""

import json
import os
import subprocess
import sys

OUT = os.environ.get("OUT", ".")
# Seconds of B's kernels, and whether the second one waits for a product.
CASES = (
    (0, 0, 0),
    (2e-3, 0, 0),
    (0, 2e-3, 1),
    (2e-3, 2e-3, 0),
    (2e-3, 2e-3, 1),
    (0.3e-3, 2e-3, 1),
)


def child(connections):
    import torch

    rows = []
    n = 4096
    x = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    outputs = [torch.empty_like(x) for _ in range(6)]
    a = torch.cuda.Stream()
    hz = 1.7e9

    def issue(b, first, second, record, waits, ahead):
        timed = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
        plain = [torch.cuda.Event(enable_timing=record == "timed") for _ in range(4)]
        with torch.cuda.stream(a):
            if ahead:
                torch.cuda._sleep(int(ahead * hz))
            timed[0].record(a)
            plain[0].record(a)
        b.wait_event(plain[0])
        with torch.cuda.stream(b):
            if first:
                torch.cuda._sleep(int(first * hz))
            if first and record != "none":
                plain[1].record(b)
        with torch.cuda.stream(a):
            torch.mm(x, x, out=outputs[0])
            timed[1].record(a)
            plain[2].record(a)
        if second and waits:
            b.wait_event(plain[2])
        with torch.cuda.stream(b):
            if second:
                torch.cuda._sleep(int(second * hz))
            if second and record != "none":
                plain[3].record(b)
        with torch.cuda.stream(a):
            for i in range(4):
                torch.mm(x, x, out=outputs[i + 1])
                timed[i + 2].record(a)
        return timed, plain

    for priority in (0, -1):
        b = torch.cuda.Stream(priority=priority)
        for record in ("none", "plain", "timed"):
            for first, second, waits in CASES:
                for ahead in (0, 3e-3):
                    for _ in range(4):
                        torch.cuda.synchronize()
                        timed, _ = issue(b, first, second, record, waits, ahead)
                        torch.cuda.synchronize()
                    products = [round(timed[0].elapsed_time(e), 4) for e in timed[1:]]
                    row = {
                        "connections": connections,
                        "priority": priority,
                        "record": record,
                    }
                    row |= {
                        "first": first,
                        "second": second,
                        "waits": waits,
                        "ahead": ahead,
                    }
                    rows.append(row | {"products": products})
    with open(os.path.join(OUT, "queue.jsonl"), "a") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            print(row)


if len(sys.argv) > 1:
    child(int(sys.argv[1]))
else:
    for connections in (1, 2, 8):
        environment = dict(
            os.environ, CUDA_DEVICE_MAX_CONNECTIONS=str(connections), OUT=OUT
        )
        subprocess.run(
            [sys.executable, __file__, str(connections)], env=environment, timeout=60
        )
