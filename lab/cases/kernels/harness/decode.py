"""Times of one decoding step's kernels on a GPU: products of few rows, one query's attention, experts with few tokens.

    python decode.py OUT.jsonl [SET ...]     measures everything, or some sets, a row as soon as it is there

Needs PyTorch and Triton. Calls are captured in a CUDA graph, as serving engines run them, and work on operands that take
turns (`POOL` bytes), so nothing is found in the L2 cache. Microseconds of a call: the median of five replays.
"""

import json
import statistics
import subprocess
import sys
import time

import torch
import triton
import triton.language as tl

CALLS, RUNS = 24, 5
POOL = 400 << 20  # bytes of operands that take turns; an H100's L2 has 50 MB
BF16 = {"device": "cuda", "dtype": torch.bfloat16}
ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)

# n, k: Llama 3.1 8B; Qwen3 32B whole and in quarters; Qwen3 30B A3B whole and in halves; Qwen3 235B A22B in eighths and
# sixteenths; DeepSeek V3 in sixteenths and 32nds; projections to the vocabulary; routers
PRODUCTS = [
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096),
    (10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600),
    (2560, 5120), (5120, 2048), (12800, 5120), (5120, 6400), (37984, 5120),
    (5120, 2048), (2048, 4096), (2560, 2048), (2048, 2048), (151936, 2048), (75968, 2048),
    (1280, 4096), (4096, 1024), (768, 4096), (4096, 512), (18992, 4096),
    (2112, 7168), (1536, 1536), (768, 1536), (7168, 1024), (7168, 512),
    (256, 7168), (7168, 128), (2304, 7168), (7168, 1152), (8080, 7168),
    (128, 2048), (128, 4096),
]  # fmt: skip
# heads, heads of keys and values, width
ATTENTION = [(32, 8, 128), (64, 8, 128), (16, 2, 128), (8, 1, 128), (4, 1, 128)]
LATENT = [(8, 512, 64), (4, 512, 64), (16, 512, 64)]  # heads, latent width, rotated
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 4, 16, 32, 64, 128, 256)
# n, k of an expert's products: Qwen3 30B whole, in halves; Qwen3 235B in eighths; DeepSeek V3 in sixteenths, 32nds
EXPERTS = [
    (1536, 2048), (2048, 768), (768, 2048), (2048, 384), (384, 4096), (4096, 192),
    (256, 7168), (7168, 128), (128, 7168), (7168, 64),
]  # fmt: skip
MET = (8, 32, 64, 128, 256)
EACH = (1, 2, 4, 8, 16, 32)


def graphed(run, calls=CALLS):
    """Microseconds of `run(i)`, captured `calls` times in one graph."""
    run(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            run(i)
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / calls)
    return round(statistics.median(times), 3)


def turns(size, most=CALLS):
    """How many operands of so many bytes take turns."""
    return max(1, min(most, POOL // max(1, size) + 1))


def products(write):
    for n, k in dict.fromkeys(PRODUCTS):
        count = turns(2 * n * k)
        weights = [torch.randn(n, k, **BF16) for _ in range(count)]
        for m in ROWS:
            x = torch.randn(m, k, **BF16)
            us = graphed(lambda i: torch.mm(x, weights[i % count].t()))
            write({"kernel": "product", "dtype": "bf16", "m": m, "n": n, "k": k, "us": us})
        del weights


def products_fp8(write):
    """By a scale for each tensor, and by blocks (1 x 128 of activations, 128 x 128 of weights) where they divide."""
    for n, k in dict.fromkeys(PRODUCTS):
        if n % 16 or k % 128 or n > 60000:
            continue
        count = turns(n * k)
        weights = [
            torch.randn(n, k, **BF16).to(torch.float8_e4m3fn) for _ in range(count)
        ]
        for m in ROWS:
            x = torch.randn(max(m, 1), k, **BF16).to(torch.float8_e4m3fn)
            one = torch.ones((), device="cuda")
            row = {"m": m, "n": n, "k": k}

            def tensor(i):
                torch._scaled_mm(
                    x, weights[i % count].t(), one, one, out_dtype=torch.bfloat16
                )

            def blocks(i):
                torch._scaled_mm(
                    x, weights[i % count].t(), sa, sb, out_dtype=torch.bfloat16
                )

            try:
                us = graphed(tensor)
                write({"kernel": "product", "dtype": "fp8", **row, "us": us})
            except Exception as error:
                told("fp8", row, error)
            if n % 128:
                continue
            sa = torch.ones(k // 128, m, device="cuda").t()
            sb = torch.ones(n // 128, k // 128, device="cuda").t()
            try:
                us = graphed(blocks)
                write({"kernel": "product", "dtype": "fp8_block", **row, "us": us})
            except Exception as error:
                told("fp8_block", row, error)
        del weights


def attention(write):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    ways = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    for heads, kv, dim in ATTENTION:
        for batch in BATCHES:
            for context in CONTEXTS:
                size = 4 * batch * kv * context * dim
                if size > 12 << 30:
                    continue
                count = turns(size, 8)
                # as a cache lies: tokens outside, heads inside
                caches = [
                    [
                        torch.randn(batch, context, kv, dim, **BF16).transpose(1, 2)
                        for _ in "kv"
                    ]
                    for _ in range(count)
                ]
                q = torch.randn(batch, heads, 1, dim, **BF16)
                for name, way in ways.items():
                    if name == "cudnn" and (heads, kv) != (32, 8):
                        continue
                    row = {
                        "kernel": f"decode_{name}", "batch": batch, "context": context,
                        "heads": heads, "kv_heads": kv, "dim": dim,
                    }  # fmt: skip

                    def one(i):
                        k, v = caches[i % count]
                        torch.nn.functional.scaled_dot_product_attention(
                            q, k, v, enable_gqa=heads != kv
                        )

                    try:
                        with sdpa_kernel(way):
                            us = graphed(one, 8)
                        write({**row, "us": us})
                    except Exception as error:
                        told(name, row, error)
                del caches


@triton.jit
def latent_kernel(
    q, cache, table, part, heads, context, pages, splits,
    RANK: tl.constexpr, ROPE: tl.constexpr, H: tl.constexpr, N: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Latent attention of one token over a paged cache, one split of the context; sums and values go to `part`."""
    row, split = tl.program_id(0), tl.program_id(1)
    h, c, r, n = tl.arange(0, H), tl.arange(0, RANK), tl.arange(0, ROPE), tl.arange(0, N)
    width = RANK + ROPE
    at = q + (row * heads + h[:, None]) * width
    there = h[:, None] < heads
    qc = tl.load(at + c[None, :], mask=there, other=0.0)
    qr = tl.load(at + RANK + r[None, :], mask=there, other=0.0)
    length = tl.cdiv(context, splits)
    begin = split * length
    end = tl.minimum(begin + length, context)
    top = tl.full([H], -1e30, tl.float32)
    total = tl.zeros([H], tl.float32)
    acc = tl.zeros([H, RANK], tl.float32)
    for start in range(begin, end, N):
        token = start + n
        ok = token < end
        page = tl.load(table + row * pages + token // PAGE, mask=ok, other=0)
        place = cache + (page.to(tl.int64) * PAGE + token % PAGE)[:, None] * width
        kc = tl.load(place + c[None, :], mask=ok[:, None], other=0.0)
        kr = tl.load(place + RANK + r[None, :], mask=ok[:, None], other=0.0)
        s = tl.dot(qc, tl.trans(kc)) + tl.dot(qr, tl.trans(kr))
        s = tl.where(ok[None, :], s * 0.04, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        scale = tl.exp(top - new)
        total = total * scale + tl.sum(p, 1)
        acc = acc * scale[:, None] + tl.dot(p.to(kc.dtype), kc)
        top = new
    out = part + ((row * splits + split) * heads + h[:, None]) * RANK + c[None, :]
    tl.store(out, acc / total[:, None], mask=there)


def latent(write):
    """DeepSeek's, absorbed: one paged latent cache that all heads read. The last sum over splits is a kernel too."""
    page = 64
    for heads, rank, rope in LATENT:
        for batch in BATCHES:
            for context in CONTEXTS:
                width = rank + rope
                size = 2 * batch * context * width
                if size > 8 << 30:
                    continue
                pages, count = -(-context // page), turns(size, 8)
                caches = [
                    torch.randn(batch * pages * page, width, **BF16)
                    for _ in range(count)
                ]
                table = (
                    torch.randperm(batch * pages, device="cuda")
                    .int()
                    .reshape(batch, pages)
                )
                q = torch.randn(batch, heads, width, **BF16)
                splits = max(1, min(context // 64, 264 // batch))
                part = torch.empty(batch, splits, heads, rank, device="cuda")

                def one(i):
                    latent_kernel[(batch, splits)](
                        q, caches[i % count], table, part, heads, context, pages, splits,
                        RANK=rank, ROPE=rope, H=16, N=32, PAGE=page, num_warps=8, num_stages=2,
                    )  # fmt: skip
                    part.sum(1)

                row = {
                    "kernel": "decode_latent", "batch": batch, "context": context,
                    "heads": heads, "rank": rank, "rope": rope,
                }  # fmt: skip
                try:
                    write({**row, "us": graphed(one, 8)})
                except Exception as error:
                    told("latent", row, error)
                    break
                del caches


@triton.jit
def grouped_kernel(
    x, w, y, N, K, each,
    M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One expert's product for up to M rows."""
    expert, tile = tl.program_id(1), tl.program_id(0)
    m, n, k = tl.arange(0, M), tile * BN + tl.arange(0, BN), tl.arange(0, BK)
    rows = expert.to(tl.int64) * each + m
    acc = tl.zeros([M, BN], tl.float32)
    for start in range(0, K, BK):
        a = tl.load(x + rows[:, None] * K + start + k[None, :], mask=(m < each)[:, None], other=0.0)
        at = w + expert.to(tl.int64) * N * K + n[:, None] * K + start + k[None, :]
        b = tl.load(at, mask=(n < N)[:, None] & (start + k < K)[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(b), acc)
    tl.store(y + rows[:, None] * N + n[None, :], acc.to(y.dtype.element_ty), mask=(m < each)[:, None] & (n < N)[None, :])


TILES = ((64, 64, 4, 4), (128, 64, 4, 4), (64, 128, 4, 3), (32, 128, 4, 4))


def experts(write):
    """Equal rows for every expert that is met: PyTorch's grouped product, and the best of a few Triton tiles."""
    for n, k in EXPERTS:
        for met in MET:
            size = 2 * met * n * k
            if size > 4 << 30:
                continue
            count = turns(size, 8)
            pools = [torch.randn(met, n, k, **BF16) for _ in range(count)]
            for each in EACH:
                x = torch.randn(met * each, k, **BF16)
                y = torch.empty(met * each, n, **BF16)
                ends = torch.arange(
                    each, met * each + 1, each, device="cuda", dtype=torch.int32
                )
                row = {"experts": met, "each": each, "n": n, "k": k}

                def library(i):
                    torch._grouped_mm(x, pools[i % count].transpose(1, 2), offs=ends)

                try:
                    us = graphed(library, 8)
                    write({"kernel": "experts_grouped_mm", **row, "us": us})
                except Exception as error:
                    told("grouped_mm", row, error)
                tried = []
                for bn, bk, warps, stages in TILES:
                    if k % bk:
                        continue

                    def own(i):
                        grouped_kernel[(triton.cdiv(n, bn), met)](
                            x, pools[i % count], y, n, k, each,
                            M=max(16, triton.next_power_of_2(each)), BN=bn, BK=bk, num_warps=warps, num_stages=stages,
                        )  # fmt: skip

                    try:
                        tried.append(graphed(own, 8))
                    except Exception as error:
                        told("experts", row, error)
                if tried:
                    write({"kernel": "experts_triton", **row, "us": min(tried)})
            del pools


def small(write):
    """Kernels that move next to nothing, one behind the other in a graph; a chain depends on itself as layers do."""
    f = torch.nn.functional
    for batch in (1, 16, 64, 256):
        for hidden in (2048, 4096, 7168):
            x = torch.randn(batch, hidden, **BF16)
            wide = torch.randn(batch, 2 * hidden, **BF16)
            weight = torch.ones(hidden, **BF16)
            y = torch.empty_like(x)
            scores = torch.randn(batch, 256, device="cuda")
            where = torch.randperm(max(batch, 256), device="cuda")[:batch]
            cache = torch.zeros(max(batch, 256), hidden, **BF16)
            runs = {
                "add": lambda i: torch.add(x, 1.0, out=y),
                "rms_norm": lambda i: f.rms_norm(x, (hidden,), weight),
                "silu": lambda i: f.silu(wide[:, :hidden]),
                "cache": lambda i: cache.index_copy_(0, where, x),
                "top_k": lambda i: scores.topk(8),
                "softmax": lambda i: scores.softmax(-1),
            }
            for name, run in runs.items():
                row = {"kernel": f"small_{name}", "batch": batch, "hidden": hidden}
                try:
                    write({**row, "us": graphed(run, 200)})
                except Exception as error:
                    told(name, row, error)


def sampling(write):
    """Random sampling with the sampled token's log-probability, as vLLM's sampler does it without top-k and top-p."""
    for vocab in (128256, 151936, 129280):
        for batch in (1, 16, 32, 64, 128, 256):
            logits = torch.randn(batch, vocab, **BF16)

            def one(i):
                values = logits.float()
                logs = values.log_softmax(-1)
                values.div_(1.0)
                probs = values.softmax(-1)
                noise = torch.empty_like(probs).exponential_()
                token = probs.div_(noise).argmax(-1)
                of_token = logs.gather(-1, token[:, None])
                (logs >= of_token).sum(-1)

            row = {"kernel": "sampling", "batch": batch, "vocab": vocab}
            for _ in range(2):
                one(0)
            torch.cuda.synchronize()
            times = []
            for _ in range(RUNS):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(3_000_000)
                start.record()
                for i in range(4):
                    one(i)
                end.record()
                torch.cuda.synchronize()
                times.append(250 * start.elapsed_time(end))
            write({**row, "us": round(statistics.median(times), 2)})


def copies(write):
    """A GPU's tensors to pageable and pinned memory and back, GB/s by the clock; graphs' launches by kernels."""
    for megabytes in (1, 16, 256, 1024):
        x = torch.empty(megabytes << 20, dtype=torch.uint8, device="cuda")
        host = torch.empty(megabytes << 20, dtype=torch.uint8)
        pinned = torch.empty(megabytes << 20, dtype=torch.uint8, pin_memory=True)
        host.fill_(1)
        runs = {
            "to_new_pageable": lambda: x.to("cpu"),
            "to_pageable": lambda: host.copy_(x),
            "to_pinned": lambda: pinned.copy_(x, non_blocking=True),
            "from_pageable": lambda: x.copy_(host),
            "from_pinned": lambda: x.copy_(pinned, non_blocking=True),
            "pin": lambda: torch.empty(megabytes << 20, dtype=torch.uint8, pin_memory=True),
        }
        for name, run in runs.items():
            run()
            times = []
            for _ in range(3):
                torch.cuda.synchronize()
                began = time.perf_counter()
                run()
                torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
            seconds = statistics.median(times)
            write({"kernel": f"copy_{name}", "bytes": megabytes << 20, "us": round(1e6 * seconds, 1)})
    x = torch.zeros(16, device="cuda")
    for kernels in (50, 200, 800):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(kernels):
                x.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        times = []
        for _ in range(9):
            began = time.perf_counter()
            graph.replay()
            times.append(time.perf_counter() - began)
            torch.cuda.synchronize()
        write({"kernel": "graph_launch", "kernels": kernels, "us": round(1e6 * statistics.median(times), 2)})


SETS = {
    "small": small, "sampling": sampling, "copies": copies, "products": products, "attention": attention,
    "experts": experts, "latent": latent, "products_fp8": products_fp8,
}  # fmt: skip


def told(name, row, error):
    print(name, row, repr(error)[:160], flush=True)


def about():
    query = "name,driver_version,clocks.max.sm,clocks.sm,power.limit"
    smi = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    return {
        "about": smi.stdout.strip(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def main(out, *sets):
    with open(out, "a") as file:

        def write(row):
            file.write(json.dumps(row) + "\n")
            file.flush()

        write(about())
        for name in sets or SETS:
            began = time.time()
            try:
                SETS[name](write)
            except Exception as error:
                told(name, "all", error)
            torch.cuda.empty_cache()
            print(name, round(time.time() - began), "s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
