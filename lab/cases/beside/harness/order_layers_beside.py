# Expected run time: 120 to 145 s (two starts of two processes; each stops starting cases at its deadline).
"""What a communication beside kernels costs on two H200: in CUDA graphs and launched, by CTAs, and by copy engines.

python order_layers_beside.py writes JSON lines to $OUT (order-*, beside-*, layer-*, gaps-*, copies-*), one file a rank and start.
"""
import json
import os
import statistics
import subprocess
import sys
import time

PARTS = {"1": ("order", "layer", "beside", "copies"), "32": ("order", "layer")}
LIMIT = {"1": 88.0, "32": 30.0}


def parent():
    for port, connections in ((29611, "1"), (29613, "32")):
        env = dict(os.environ, CUDA_DEVICE_MAX_CONNECTIONS=connections, NCCL_NVLS_ENABLE="0", MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), WORLD_SIZE="2", TORCH_NCCL_AVOID_RECORD_STREAMS="1", TORCH_NCCL_ENABLE_MONITORING="0")
        env["OUT"] = os.environ.get("OUT", ".")
        children = [
            subprocess.Popen([sys.executable, os.path.abspath(__file__), "child", connections], env=dict(env, RANK=str(r), LOCAL_RANK=str(r)))
            for r in range(2)
        ]
        deadline = time.time() + LIMIT[connections] + 25
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
MIB = 2**19  # elements of bf16
FILES = {}


def left():
    """Seconds until the deadline, agreed by both ranks."""
    x = torch.tensor([LIMIT[CONNECTIONS] - (time.time() - BEGIN)], device=DEVICE)
    dist.all_reduce(x, op=dist.ReduceOp.MIN)
    return float(x.item())


def write(part, row):
    if part not in FILES:
        FILES[part] = open(os.path.join(os.environ["OUT"], f"{part}-c{CONNECTIONS}-{RANK}.jsonl"), "w")
    print(json.dumps(row), file=FILES[part], flush=True)


def values(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def product(m, n, k):
    a, b, c = values(m, k), values(n, k).t(), values(m, n)
    return lambda: torch.mm(a, b, out=c)


def product8(m, n, k):
    a = values(m, k).to(torch.float8_e4m3fn)
    b = values(n, k).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=DEVICE)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def attention(tokens, backend, heads=32):
    q, k, v = (values(1, heads, tokens, 128) for _ in range(3))

    def run():
        with sdpa_kernel(backend):
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


def communication(op, size, group):
    """A callable that begins it and returns its works; `size` MiB of the whole buffer."""
    whole = values(size * MIB)
    part = values(size * MIB // 2)
    peer = 1 - RANK
    if op == "all_reduce":
        return lambda: [dist.all_reduce(whole, async_op=True, group=group)]
    if op == "all_gather":
        return lambda: [dist.all_gather_into_tensor(whole, part, async_op=True, group=group)]
    if op == "reduce_scatter":
        return lambda: [dist.reduce_scatter_tensor(part, whole, async_op=True, group=group)]
    received = values(size * MIB)
    return lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, whole, peer, group=group), dist.P2POp(dist.irecv, received, peer, group=group)])


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


def timed(run, repeats=3):
    """Milliseconds of a call, the host ahead: median."""
    times = []
    for _ in range(repeats):
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


def spans_of(run):
    """(start, end, is communication) in microseconds of kernels of a run, in order."""
    dist.barrier()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    spans = [
        (e.time_range.start, e.time_range.end, "nccl" in e.name.lower())
        for e in profiler.events()
        if e.device_type == torch.autograd.DeviceType.CUDA and "emset" not in e.name and "spin" not in e.name and "emcpy" not in e.name
    ]
    return sorted(spans)


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


REPS = 8


def pattern(first, communicate, following):
    def run():
        for _ in range(REPS):
            first()
            works = communicate() if communicate else ()
            if following:
                following()
            for work in works:
                work.wait()
        first()

    return run


def order_of(spans):
    """Of every repetition: when the communication and the next kernel start after the first, and the first again after both."""
    compute = [s for s in spans if not s[2]]
    sent = [s for s in spans if s[2]]
    if len(compute) != 2 * REPS + 1 or len(sent) != REPS:
        return {"kernels": len(compute), "communications": len(sent)}
    rows = []
    for i in range(REPS):
        before, following, again, comm = compute[2 * i], compute[2 * i + 1], compute[2 * i + 2], sent[i]
        rows.append((comm[0] - before[1], comm[1] - comm[0], following[0] - before[1], following[1] - following[0],
                     again[0] - max(comm[1], following[1])))
    names = ("communication_start_us", "communication_us", "next_start_us", "next_us", "again_us")
    row = {name: round(statistics.median(r[i] for r in rows[1:]), 1) for i, name in enumerate(names)}
    row["communication_first"] = sum(r[0] < r[2] for r in rows)
    row["repetitions"] = REPS
    return row


def order():
    cudnn, flash = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
    followers = {
        "attn_1_32_8192": attention(8192, cudnn), "attn_1_32_4096": attention(4096, cudnn), "fa2_1_32_4096": attention(4096, flash),
        "mm_4096_4096_8192": product(4096, 4096, 8192), "mm_8192_8192_8192": product(8192, 8192, 8192),
        "fp8_8192_8192_8192": product8(8192, 8192, 8192), "ew_256M": elementwise(2**28),
    }
    firsts = {"mm": product(8192, 4096, 4096), "attn": attention(4096, cudnn)}
    comms = [("send_receive", 8, 1), ("send_receive", 32, 0), ("all_gather", 64, 8), ("all_gather", 64, 0), ("reduce_scatter", 64, 0), ("all_reduce", 16, 0)]
    groups = {ctas: group_of(ctas) for ctas in sorted({c[2] for c in comms})}
    for op, size, ctas in comms:
        communicate = communication(op, size, groups[ctas])
        for first_name, first in firsts.items():
            for name, following in followers.items():
                if first_name == "attn" and not name.startswith("attn"):
                    continue
                if left() < (50 if CONNECTIONS == "1" else 6):
                    return
                key = {"connections": CONNECTIONS, "before": first_name, "op": op, "mebibytes": size, "ctas": ctas, "next": name}
                for way in ("graph", "launched"):
                    try:
                        runs = {k: pattern(*v) for k, v in {"both": (first, communicate, following), "kernels": (first, None, following),
                                                           "communication": (first, communicate, None), "first": (first, None, None)}.items()}
                        for run in runs.values():
                            run()
                        torch.cuda.synchronize()
                        if way == "graph":
                            graphs = {k: captured(run) for k, run in runs.items() if k != "first"}
                            calls = {k: g.replay for k, g in graphs.items()}
                        else:
                            calls = {k: v for k, v in runs.items() if k != "first"}
                        row = {f"{k}_us": round(1000 * timed(call) / REPS, 1) for k, call in calls.items()}
                        row["overlap"] = order_of(spans_of(calls["both"]))
                        if way == "graph":
                            for g in graphs.values():
                                g.reset()
                    except Exception as error:  # noqa
                        row = {"error": repr(error)[:200]}
                    write("order", key | {"way": way} | row)


def layer():
    """Backward passes of two projections with tensor parallelism of 2, twelve layers; ring attention of 2 with two streams."""
    group, one = group_of(0), group_of(1)
    second = torch.cuda.Stream()
    for rows, hidden, ffn in ((4096, 8192, 14336), (2048, 4096, 7168), (4096, 12288, 24576)):
        dgrad2, wgrad2 = product(rows, ffn, hidden), product(hidden, ffn, rows)
        dgrad1, wgrad1 = product(rows, hidden, ffn), product(ffn, hidden, rows)
        size = max(1, rows * hidden // MIB)
        gather, scatter = communication("all_gather", size, group), communication("reduce_scatter", size, group)

        def wait(works):
            for work in works:
                work.wait()

        def plain():
            for _ in range(12):
                dgrad2(), wgrad2(), dgrad1(), wgrad1()

        def exchanged():
            for _ in range(12):
                wait(gather())
                dgrad2(), wgrad2()
                works = gather()
                dgrad1()
                wait(works)
                works = scatter()
                wgrad1()
                wait(works)

        def alone():
            for _ in range(12):
                wait(gather()), wait(gather()), wait(scatter())

        for way in ("launched", "graph"):
            try:
                calls = {"products": plain, "both": exchanged, "communication": alone}
                for call in calls.values():
                    call()
                torch.cuda.synchronize()
                if way == "graph":
                    calls = {k: captured(v).replay for k, v in calls.items()}
                row = {f"{k}_us": round(1000 * timed(call) / 12, 1) for k, call in calls.items()}
                spans = spans_of(calls["both"])
                kernels, comms = [s for s in spans if not s[2]], [s for s in spans if s[2]]
                if len(kernels) == 48 and len(comms) == 36:
                    names = ("dgrad2", "wgrad2", "dgrad1", "wgrad1")
                    row |= {f"{n}_us": round(statistics.median(e - b for b, e, _ in kernels[i::4][1:]), 1) for i, n in enumerate(names)}
                    row |= {f"comm{i}_us": round(statistics.median(e - b for b, e, _ in comms[i::3][1:]), 1) for i in range(3)}
                    row |= {"scatter_after_dgrad1_us": round(statistics.median(comms[3 * i + 2][0] - kernels[4 * i + 2][1] for i in range(1, 12)), 1),
                            "wgrad1_after_dgrad1_us": round(statistics.median(kernels[4 * i + 3][0] - kernels[4 * i + 2][1] for i in range(1, 12)), 1),
                            "gather_after_last_us": round(statistics.median(comms[3 * i][0] - max(kernels[4 * i - 1][1], comms[3 * i - 1][1]) for i in range(1, 12)), 1),
                            "dgrad2_after_gather_us": round(statistics.median(kernels[4 * i][0] - comms[3 * i][1] for i in range(1, 12)), 1)}
                spans = spans_of(calls["products"])
                if len(spans) == 48:
                    row |= {f"{n}_alone_us": round(statistics.median(e - b for b, e, _ in spans[i::4][1:]), 1) for i, n in enumerate(names)}
            except Exception as error:  # noqa
                row = {"error": repr(error)[:200]}
            write("layer", {"connections": CONNECTIONS, "rows": rows, "hidden": hidden, "ffn": ffn, "way": way} | row)

    for tokens, heads, keys in ((4096, 32, 2), (8192, 16, 8)):
        forward = attention(tokens, SDPBackend.CUDNN_ATTENTION, heads)
        size = max(1, tokens * keys * 128 * 2 // MIB)
        for ctas, g in ((1, one), (0, group)):
            send = communication("send_receive", size, g)
            project = product(tokens, 4096, 4096)

            def ring(streams, exchange=True):
                def run():
                    main = torch.cuda.current_stream()
                    for _ in range(12):
                        project()
                        works = send() if exchange else ()
                        forward()
                        if streams:
                            ready = torch.cuda.Event()
                            ready.record(main)
                            with torch.cuda.stream(second):
                                if not exchange:
                                    second.wait_event(ready)
                                for work in works:
                                    work.wait()
                                forward()
                            main.wait_stream(second)
                        else:
                            for work in works:
                                work.wait()
                            forward()

                return run

            for way in ("launched", "graph"):
                try:
                    calls = {"one_stream": ring(False), "two_streams": ring(True), "kernels": ring(False, False)}
                    for call in calls.values():
                        call()
                    torch.cuda.synchronize()
                    if way == "graph":
                        calls = {k: captured(v).replay for k, v in calls.items()}
                    row = {f"{k}_us": round(1000 * timed(call) / 12, 1) for k, call in calls.items()}
                except Exception as error:  # noqa
                    row = {"error": repr(error)[:200]}
                write("layer", {"connections": CONNECTIONS, "ring": True, "tokens": tokens, "heads": heads, "mebibytes": size, "ctas": ctas, "way": way} | row)


def beside():
    """Kernels and communications that run at the same time for long, by CTAs."""
    kinds = {
        "mm_8192_8192_8192": product(8192, 8192, 8192), "mm_4096_4096_8192": product(4096, 4096, 8192), "mm_4096_26624_8192": product(4096, 26624, 8192),
        "fp8_8192_8192_8192": product8(8192, 8192, 8192), "fp8_4096_16384_4096": product8(4096, 16384, 4096),
        "attn_1_32_8192": attention(8192, SDPBackend.CUDNN_ATTENTION), "attn_bwd_1_32_4096": attention_backward(4096), "ew_256M": elementwise(2**28),
    }
    alone = {}
    for name, kernel in kinds.items():
        for _ in range(3):
            kernel()
        torch.cuda.synchronize()
        alone[name] = max(1e-3, timed(lambda: [kernel() for _ in range(10)]) / 10)  # noqa
        spans = spans_of(lambda: [kernel() for _ in range(10)])  # noqa
        write("beside", {"kernel": name, "alone_us": round(1000 * alone[name], 1),
                         "alone_kernel_us": round(statistics.median(e - b for b, e, _ in spans), 1) if spans else None, "kernels": len(spans)})
    side = torch.cuda.Stream()
    for ctas in (1, 8, 2, 16, 4, 32):
        group = group_of(ctas)
        for op, size in (("all_gather", 64), ("reduce_scatter", 64), ("send_receive", 16), ("all_gather", 16), ("reduce_scatter", 256), ("all_gather", 256)):
            communicate = communication(op, size, group)

            def send(n):
                with torch.cuda.stream(side):
                    for _ in range(n):
                        communicate()

            send(2)
            torch.cuda.synchronize()
            spans = spans_of(lambda: send(6))
            comm_alone = statistics.median(e - b for b, e, _ in spans) if spans else 0.0
            for name, kernel in kinds.items():
                if left() < 9:
                    return
                n_comm = max(3, min(24, int(12000 / max(comm_alone, 1))))
                n_kernel = max(6, min(60, int(1.2 * n_comm * comm_alone / (1000 * alone[name]))))

                def both():
                    torch.cuda._sleep(4_000_000)
                    ready = torch.cuda.Event()
                    ready.record()
                    side.wait_event(ready)
                    sent = 0
                    for i in range(n_kernel):
                        while sent * n_kernel <= i * n_comm and sent < n_comm:
                            send(1)
                            sent += 1
                        kernel()

                try:
                    spans = spans_of(both)
                    comms, kernels = [s for s in spans if s[2]], [s for s in spans if not s[2]]

                    def covered(span, others):
                        return sum(max(0.0, min(span[1], e) - max(span[0], b)) for b, e, _ in others) / (span[1] - span[0])

                    with_comm = [e - b for b, e, c in kernels if covered((b, e), comms) > 0.97]
                    with_kernel = [e - b for b, e, c in comms if covered((b, e), kernels) > 0.9]
                    row = {"kernels_beside": len(with_comm), "communications_beside": len(with_kernel),
                           "kernel_us": round(statistics.median(with_comm), 1) if with_comm else None,
                           "communication_us": round(statistics.median(with_kernel), 1) if with_kernel else None,
                           "communication_alone_us": round(comm_alone, 1),
                           "communicating": round(sum(e - b for b, e, _ in comms) / max(1.0, spans[-1][1] - spans[0][0]), 3),
                           "span_us": round(spans[-1][1] - spans[0][0], 1), "n_comm": len(comms), "n_kernel": len(kernels)}
                except Exception as error:  # noqa
                    row = {"error": repr(error)[:200]}
                write("beside", {"ctas": ctas, "op": op, "mebibytes": size, "kernel": name, "alone_us": round(1000 * alone[name], 1)} | row)


def copies():
    """Copies by copy engines from rank 0's GPU to rank 1's and back beside products (rank 0's process alone)."""
    if RANK == 0:
        other = torch.device("cuda", 1)
        kinds = {"mm_8192_8192_8192": product(8192, 8192, 8192), "fp8_8192_8192_8192": product8(8192, 8192, 8192), "mm_4096_4096_8192": product(4096, 4096, 8192), "attn_1_32_8192": attention(8192, SDPBackend.CUDNN_ATTENTION)}
        out_stream, in_stream = torch.cuda.Stream(), torch.cuda.Stream(other)
        for size in (4, 16, 64):
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
                    for _ in range(n_kernels):
                        kernel()
                    events[1].record()
                    with torch.cuda.stream(out_stream):
                        events[2].record()
                        for _ in range(n_copies):
                            b.copy_(a, non_blocking=True)
                        events[3].record()
                    with torch.cuda.stream(in_stream):
                        for _ in range(n_copies):
                            d.copy_(c, non_blocking=True)
                    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
                    first = events[0].elapsed_time(events[1]) if n_kernels else 0.0
                    second = events[2].elapsed_time(events[3]) if n_copies else 0.0
                    return first, second
                run(2, 2)
                _, copy = run(20, 0)
                kernels, _ = run(0, 20)
                n = max(4, int(1.3 * kernels / max(copy / 20, 1e-3)))
                beside_kernels, _ = run(n, 20)
                m = max(4, int(1.3 * copy / max(kernels / 20, 1e-3)))
                _, beside_copy = run(20, m)
                write("copies", {"mebibytes": size, "kernel": name, "kernel_alone_us": round(50 * kernels, 1), "kernel_us": round(50 * beside_kernels, 1),
                                 "copy_alone_us": round(50 * copy, 1), "copy_us": round(50 * beside_copy, 1)})


def main():
    dist.init_process_group("nccl", device_id=DEVICE)
    for part in PARTS[CONNECTIONS]:
        if left() < 4:
            break
        try:
            {"order": order, "layer": layer, "beside": beside, "copies": copies}[part]()
        except Exception as error:  # noqa
            write("errors", {"part": part, "error": repr(error)[:500]})
        torch.cuda.synchronize()
        write("errors", {"part": part, "done_s": round(time.time() - BEGIN, 1)})
    os._exit(0)


main()
