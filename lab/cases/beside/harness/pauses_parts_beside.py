# Expected run time: 110 to 140 s (two starts of two processes; each stops starting cases at its deadline).
"""Products in chunks beside copies as Transformer Engine's user buffers run them, pauses between dependent kernels, and kernels beside communications.

python pauses_parts_beside.py writes JSON lines to $OUT (gaps-*, chunks-*, copies-*, small-*, beside-*), one file a rank and start.
"""
import json
import os
import statistics
import subprocess
import sys
import time

PARTS = {"1": ("gaps", "chunks", "copies", "small", "beside"), "32": ("gaps", "chunks")}
LIMIT = {"1": 92.0, "32": 22.0}


def parent():
    for port, connections in ((29621, "1"), (29623, "32")):
        env = dict(os.environ, CUDA_DEVICE_MAX_CONNECTIONS=connections, NCCL_NVLS_ENABLE="0", MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), WORLD_SIZE="2", TORCH_NCCL_ENABLE_MONITORING="0")
        env["OUT"] = os.environ.get("OUT", ".")
        children = [
            subprocess.Popen([sys.executable, os.path.abspath(__file__), "child", connections], env=dict(env, RANK=str(r), LOCAL_RANK=str(r)))
            for r in range(2)
        ]
        deadline = time.time() + LIMIT[connections] + 20
        for child in children:
            try:
                child.wait(max(1.0, deadline - time.time()))
            except subprocess.TimeoutExpired:
                child.kill()


if len(sys.argv) < 2:
    parent()
    sys.exit(0)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

CONNECTIONS = sys.argv[2]
RANK = int(os.environ["RANK"])
BEGIN = time.time()
DEVICE = torch.device("cuda", RANK)
torch.cuda.set_device(DEVICE)
MIB = 2**19
FILES = {}


def left():
    x = torch.tensor([LIMIT[CONNECTIONS] - (time.time() - BEGIN)], device=DEVICE)
    dist.all_reduce(x, op=dist.ReduceOp.MIN)
    return float(x.item())


def write(part, row):
    if part not in FILES:
        FILES[part] = open(os.path.join(os.environ["OUT"], f"{part}-c{CONNECTIONS}-{RANK}.jsonl"), "w")
    print(json.dumps(row), file=FILES[part], flush=True)


def values(*shape, device=DEVICE):
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def product(m, n, k):
    a, b, c = values(m, k), values(n, k).t(), values(m, n)
    return lambda: torch.mm(a, b, out=c)


def product8(m, n, k):
    a = values(m, k).to(torch.float8_e4m3fn)
    b = values(n, k).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=DEVICE)
    c = values(m, n)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True, out=c)


def attention(tokens, heads=32):
    q, k, v = (values(1, heads, tokens, 128) for _ in range(3))

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return run


def attention_backward(tokens, heads=32):
    q, k, v = (values(1, heads, tokens, 128).requires_grad_() for _ in range(3))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    g = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (q, k, v), g, retain_graph=True)


def elementwise(elements):
    x, y = values(elements), values(elements)
    return lambda: torch.mul(x, 2.0, out=y)


def norm(rows, width):
    x, w = values(rows, width), values(width)
    return lambda: F.rms_norm(x, (width,), w)


def timed(run, repeats=3, barrier=True):
    times = []
    for _ in range(repeats):
        if barrier:
            dist.barrier()
        torch.cuda.synchronize()
        torch.cuda._sleep(6_000_000)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def spans_of(run, barrier=True):
    """(start, end, is communication, stream) in microseconds of kernels of a run, in order."""
    if barrier:
        dist.barrier()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    return sorted(
        (e.time_range.start, e.time_range.end, "nccl" in e.name.lower(), e.device_index)
        for e in profiler.events()
        if e.device_type == torch.autograd.DeviceType.CUDA and "emset" not in e.name and "spin" not in e.name and "emcpy" not in e.name
    )


def captured(run):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    torch.cuda.synchronize()
    return graph


def gaps():
    """Pauses between a kernel and what follows it: in its stream, behind an event, on another stream, after a join."""
    other = torch.cuda.Stream()
    firsts = {"mm": product(4096, 4096, 4096), "ew": elementwise(2**25), "attn": attention(4096, 16)}
    nexts = {"mm": product(2048, 4096, 4096), "fp8": product8(2048, 4096, 4096), "attn": attention(2048, 16), "ew": elementwise(2**24), "norm": norm(4096, 4096)}
    aside = elementwise(2**12)
    for first_name, first in firsts.items():
        for next_name, following in nexts.items():
            if left() < LIMIT[CONNECTIONS] * (0.72 if CONNECTIONS == "1" else 0.4):
                return

            def plain():
                for _ in range(8):
                    first()
                    following()

            def recorded():
                for _ in range(8):
                    first()
                    torch.cuda.Event().record()
                    following()

            def forked():  # a small kernel on another stream waits for the first, and nothing for it but the end
                for _ in range(8):
                    first()
                    event = torch.cuda.Event()
                    event.record()
                    with torch.cuda.stream(other):
                        other.wait_event(event)
                        aside()
                    following()
                torch.cuda.current_stream().wait_stream(other)

            def joined():  # a small kernel on another stream ended long before the first did; the next waits for both
                for _ in range(8):
                    event = torch.cuda.Event()
                    event.record()
                    with torch.cuda.stream(other):
                        other.wait_event(event)
                        aside()
                        done = torch.cuda.Event()
                        done.record()
                    first()
                    torch.cuda.current_stream().wait_event(done)
                    following()

            def across():  # the next runs on another stream
                for _ in range(8):
                    first()
                    event = torch.cuda.Event()
                    event.record()
                    with torch.cuda.stream(other):
                        other.wait_event(event)
                        following()
                        done = torch.cuda.Event()
                        done.record()
                    torch.cuda.current_stream().wait_event(done)

            for name, run in (("plain", plain), ("recorded", recorded), ("forked", forked), ("joined", joined), ("across", across)):
                for way in ("launched", "graph"):
                    try:
                        run()
                        torch.cuda.synchronize()
                        if way == "graph":
                            graph = captured(run)
                            call = graph.replay
                        else:
                            def call(run=run):
                                torch.cuda._sleep(3_000_000)
                                run()
                        call()
                        spans = spans_of(call, barrier=False)
                        small = [s for s in spans if s[1] - s[0] < 3.0 and name in ("forked", "joined")]
                        big = [s for s in spans if s not in small] if name in ("forked", "joined") else spans
                        row = {"kernels": len(big)}
                        if len(big) == 16:
                            row["next_us"] = round(statistics.median(big[2 * i + 1][0] - big[2 * i][1] for i in range(1, 8)), 2)
                            row["again_us"] = round(statistics.median(big[2 * i][0] - big[2 * i - 1][1] for i in range(1, 8)), 2)
                        if small and name == "forked" and len(small) == 8:
                            row["aside_us"] = round(statistics.median(small[i][0] - big[2 * i][1] for i in range(1, 8)), 2)
                        if way == "graph":
                            graph.reset()
                    except Exception as error:  # noqa
                        row = {"error": repr(error)[:200]}
                    write("gaps", {"first": first_name, "next": next_name, "how": name, "way": way} | row)


def chunks():
    """Products in parts on one or three streams, each part behind the arrival of its rows (a copy from the other GPU)."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    sending = torch.cuda.Stream()
    cases = [
        ("fp8", 4096, 26624, 16384, 4), ("fp8", 4096, 13312, 16384, 8), ("fp8", 4096, 4608, 16384, 4), ("fp8", 4096, 16384, 13312, 4), ("fp8", 4096, 16384, 4096, 4),
        ("fp8", 4096, 12288, 12288, 4), ("fp8", 4096, 9216, 12288, 4), ("fp8", 8192, 14336, 4096, 2), ("fp8", 8192, 3072, 4096, 2),
        ("bf16", 4096, 14336, 8192, 4), ("bf16", 8192, 14336, 4096, 2), ("bf16", 4096, 12288, 12288, 4),
    ]
    for dtype, m, n, k, parts in cases:
        if left() < LIMIT[CONNECTIONS] * (0.45 if CONNECTIONS == "1" else 0.1):
            return
        make = product8 if dtype == "fp8" else product
        whole, part = make(m, n, k), make(m // parts, n, k)
        size = m // parts * k * (1 if dtype == "fp8" else 2) // 2
        source, target = values(size), values(size)
        small, large = (make(m // parts, n, k), make(m - m // parts, n, k))

        def alone():
            for _ in range(6):
                whole()

        def two():
            for _ in range(6):
                large()
                small()

        def in_turn():
            for _ in range(6):
                for _ in range(parts):
                    part()

        def ring(copies, lanes):
            def run():
                main = torch.cuda.current_stream()
                for _ in range(6):
                    begin = torch.cuda.Event()
                    begin.record(main)
                    for lane in (*lanes, sending):
                        lane.wait_event(begin)
                    for i in range(parts):
                        with torch.cuda.stream(lanes[i % len(lanes)]):
                            part()
                        if i < parts - 1:
                            with torch.cuda.stream(sending):
                                if copies:
                                    target.copy_(source, non_blocking=True)
                                arrived = torch.cuda.Event()
                                arrived.record()
                            lanes[(i + 1) % len(lanes)].wait_event(arrived)
                    for lane in lanes:
                        ended = torch.cuda.Event()
                        ended.record(lane)
                        main.wait_event(ended)
                    after = torch.cuda.Event()
                    after.record(sending)
                    main.wait_event(after)

            return run

        row = {}
        for way in ("launched", "graph"):
            runs = {"whole": alone, "two": two, "in_turn": in_turn, "ring_3": ring(True, streams), "ring_1": ring(True, streams[:1]), "free_3": ring(False, streams)}
            for name, run in runs.items():
                try:
                    run()
                    torch.cuda.synchronize()
                    call = run
                    if way == "graph":
                        graph = captured(run)
                        call = graph.replay
                        call()
                    row[f"{name}_{way}_us"] = round(1000 * timed(call, 3) / 6, 1)
                    if way == "graph":
                        graph.reset()
                except Exception as error:  # noqa
                    row[f"{name}_{way}_error"] = repr(error)[:120]
        write("chunks", {"dtype": dtype, "m": m, "n": n, "k": k, "parts": parts} | row)


def copies():
    """Copies by copy engines between the GPUs, both ways, beside kernels of rank 0's GPU (rank 0's process alone)."""
    if RANK == 0:
        other = torch.device("cuda", 1)
        kinds = {"mm_8192_8192_8192": product(8192, 8192, 8192), "fp8_8192_8192_8192": product8(8192, 8192, 8192), "fp8_4096_4608_16384": product8(4096, 4608, 16384),
                 "mm_4096_4096_8192": product(4096, 4096, 8192), "attn_1_32_8192": attention(8192), "ew_256M": elementwise(2**28)}
        out_stream, in_stream = torch.cuda.Stream(), torch.cuda.Stream(other)
        for size in (8, 64):
            a, b = values(size * MIB), torch.empty(size * MIB, device=other, dtype=torch.bfloat16)
            c, d = torch.empty(size * MIB, device=other, dtype=torch.bfloat16), values(size * MIB)
            for name, kernel in kinds.items():

                def run(n_copies, n_kernels):
                    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
                    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
                    torch.cuda._sleep(4_000_000)
                    ready = torch.cuda.Event()
                    ready.record()
                    out_stream.wait_event(ready)
                    in_stream.wait_event(ready)
                    events[0].record()
                    for i in range(max(n_kernels, n_copies)):
                        if i < n_copies:
                            with torch.cuda.stream(out_stream):
                                if i == 0:
                                    events[2].record()
                                b.copy_(a, non_blocking=True)
                            with torch.cuda.stream(in_stream):
                                d.copy_(c, non_blocking=True)
                        if i < n_kernels:
                            kernel()
                    events[1].record()
                    with torch.cuda.stream(out_stream):
                        events[3].record()
                    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
                    return events[0].elapsed_time(events[1]) if n_kernels else 0.0, events[2].elapsed_time(events[3]) if n_copies else 0.0

                try:
                    run(2, 2)
                    _, copy = run(20, 0)
                    kernels, _ = run(0, 20)
                    n = max(4, min(200, int(1.3 * kernels / max(copy / 20, 1e-3))))
                    beside_kernels, _ = run(n, 20)
                    m = max(4, min(200, int(1.3 * copy / max(kernels / 20, 1e-3))))
                    _, beside_copy = run(20, m)
                    write("copies", {"mebibytes": size, "kernel": name, "kernel_alone_us": round(50 * kernels, 1), "kernel_us": round(50 * beside_kernels, 1),
                                     "copy_alone_us": round(50 * copy, 1), "copy_us": round(50 * beside_copy, 1), "copies": n})
                except Exception as error:  # noqa
                    write("copies", {"mebibytes": size, "kernel": name, "error": repr(error)[:200]})
    dist.barrier()


def group_of(ctas):
    options = dist.ProcessGroupNCCL.Options()
    if ctas:
        options.config.min_ctas = ctas
        options.config.max_ctas = ctas
    group = dist.new_group([0, 1], pg_options=options)
    x = values(MIB)
    dist.all_reduce(x, group=group)
    torch.cuda.synchronize()
    return group


def gather_of(size, group):
    whole, piece = values(size * MIB), values(size * MIB // 2)
    return lambda: dist.all_gather_into_tensor(whole, piece, async_op=True, group=group)


def scatter_of(size, group):
    whole, piece = values(size * MIB), values(size * MIB // 2)
    return lambda: dist.reduce_scatter_tensor(piece, whole, async_op=True, group=group)


def both(kernel, communicate, n_kernel, n_comm, side):
    def run():
        torch.cuda._sleep(4_000_000)
        ready = torch.cuda.Event()
        ready.record()
        side.wait_event(ready)
        sent = 0
        for i in range(n_kernel):
            while sent * n_kernel <= i * n_comm and sent < n_comm:
                with torch.cuda.stream(side):
                    communicate()
                sent += 1
            kernel()

    return run


def covered(span, others):
    return sum(max(0.0, min(span[1], o[1]) - max(span[0], o[0])) for o in others) / max(1e-9, span[1] - span[0])


def small():
    """Sequences of short kernels beside a gather: do pauses between them grow."""
    side = torch.cuda.Stream()
    kinds = {"ew_4M": elementwise(2**22), "norm_4096_4096": norm(4096, 4096), "mm_1024_4096_4096": product(1024, 4096, 4096), "fp8_1024_4096_4096": product8(1024, 4096, 4096), "ew_32M": elementwise(2**25)}
    for ctas in (1, 8, 32):
        communicate = gather_of(256, group_of(ctas))
        for name, kernel in kinds.items():
            if left() < 22:
                return
            try:
                alone = spans_of(lambda: [kernel() for _ in range(60)])  # noqa
                spans = spans_of(both(kernel, communicate, 240, 3, side))
                comms = [s for s in spans if s[2]]
                mine = [s for s in spans if not s[2]]
                inside = [(x, y) for x, y in zip(mine, mine[1:]) if covered((x[0], y[1]), comms) > 0.97]
                row = {"alone_us": round(statistics.median(e - b for b, e, *_ in alone), 2), "alone_gap_us": round(statistics.median(y[0] - x[1] for x, y in zip(alone[5:], alone[6:])), 2),
                       "pairs": len(inside)}
                if inside:
                    row |= {"beside_us": round(statistics.median(y[1] - y[0] for x, y in inside), 2), "beside_gap_us": round(statistics.median(y[0] - x[1] for x, y in inside), 2),
                            "communication_us": round(statistics.median(e - b for b, e, *_ in comms), 1)}
            except Exception as error:  # noqa
                row = {"error": repr(error)[:200]}
            write("small", {"ctas": ctas, "kernel": name} | row)


def beside():
    """Kernels and communications that run at the same time for long, by CTAs."""
    kinds = {"mm_8192_8192_8192": product(8192, 8192, 8192), "mm_4096_4096_8192": product(4096, 4096, 8192), "mm_2048_4096_7168": product(2048, 4096, 7168),
             "fp8_4096_16384_4096": product8(4096, 16384, 4096), "attn_1_32_8192": attention(8192), "attn_bwd_1_32_4096": attention_backward(4096)}
    alone = {}
    for name, kernel in kinds.items():
        kernel()
        torch.cuda.synchronize()
        spans = spans_of(lambda: [kernel() for _ in range(12)])  # noqa
        longest = max(e - b for b, e, *_ in spans)
        alone[name] = statistics.median(e - b for b, e, *_ in spans if e - b > longest / 2)
    side = torch.cuda.Stream()
    for ctas in (8, 16, 32, 4, 2):
        group = group_of(ctas)
        for op, size, make in (("all_gather", 128, gather_of), ("reduce_scatter", 128, scatter_of)):
            communicate = make(size, group)

            def send():
                with torch.cuda.stream(side):
                    communicate()

            send()
            spans = spans_of(lambda: [send() for _ in range(6)])  # noqa
            comm_alone = statistics.median(e - b for b, e, *_ in spans)
            for name, kernel in kinds.items():
                if left() < 4:
                    return
                n_comm = max(4, min(24, int(10000 / comm_alone)))
                n_kernel = max(6, min(60, int(1.2 * n_comm * comm_alone / alone[name])))
                try:
                    spans = spans_of(both(kernel, communicate, n_kernel, n_comm, side))
                    comms, mine = [s for s in spans if s[2]], [s for s in spans if not s[2] and s[1] - s[0] > alone[name] / 2]
                    beside_comm = [e - b for b, e, *_ in (s for s in mine if covered(s, comms) > 0.97)]
                    beside_kernel = [e - b for b, e, *_ in (s for s in comms if covered(s, mine) > 0.9)]
                    row = {"n": len(beside_comm), "m": len(beside_kernel), "kernel_us": round(statistics.median(beside_comm), 1) if beside_comm else None,
                           "communication_us": round(statistics.median(beside_kernel), 1) if beside_kernel else None, "communication_alone_us": round(comm_alone, 1),
                           "span_us": round(spans[-1][1] - spans[0][0], 1), "n_comm": len(comms), "n_kernel": len(mine)}
                except Exception as error:  # noqa
                    row = {"error": repr(error)[:200]}
                write("beside", {"ctas": ctas, "op": op, "mebibytes": size, "kernel": name, "alone_us": round(alone[name], 1)} | row)


def main():
    dist.init_process_group("nccl", device_id=DEVICE)
    for part in PARTS[CONNECTIONS]:
        try:
            {"gaps": gaps, "chunks": chunks, "copies": copies, "small": small, "beside": beside}[part]()
        except Exception as error:  # noqa
            write("errors", {"part": part, "error": repr(error)[:500]})
        torch.cuda.synchronize()
        write("errors", {"part": part, "done_s": round(time.time() - BEGIN, 1)})
    os._exit(0)


main()
