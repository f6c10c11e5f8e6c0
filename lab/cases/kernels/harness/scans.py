"""Times of scans in training on a GPU: Mamba-2, gated delta rule, Kimi delta attention, forward and backward.

    python scans.py OUT.jsonl [SET ...]  measures everything, or some sets, a row as soon as it is there
    python scans.py --warm KIND N        compiles the kernels of a kind's N-th shape, for a cache that runs share

Needs PyTorch and Triton, and in PYTHONPATH `fla` (flash-linear-attention), `mamba_ssm` (its Triton operators) and
`causal_conv1d` (built by --build DIR from its csrc). Every row: sizes as in `sim.costs.library_families`, direction,
median and least of seven runs in microseconds. Ten calls follow each other behind a kernel that sleeps, so the host is
ahead of the GPU and no launch is in a time.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch

CALLS, RUNS, SLEEP = 10, 7, 150_000_000
BF16 = {"device": "cuda", "dtype": torch.bfloat16}
WIDTH = 4  # of the causal convolution
MAMBA_CHUNK = 128

# batch, tokens, keys (Mamba's groups), width of keys (its state), values (its heads), width of values
MAMBA = [
    (1, 8192, 8, 128, 64, 64),
    (1, 8192, 8, 128, 128, 64),
    (1, 8192, 4, 128, 64, 64),
    (1, 8192, 4, 128, 32, 64),
    (1, 8192, 2, 128, 32, 64),
    (1, 8192, 2, 128, 16, 64),
    (1, 8192, 1, 128, 16, 64),
    (1, 8192, 1, 128, 8, 64),
    (2, 8192, 8, 128, 64, 64),
    (4, 8192, 8, 128, 64, 64),
    (2, 8192, 4, 128, 64, 64),
    (1, 4096, 8, 128, 128, 64),
    (1, 4096, 8, 128, 64, 64),
    (2, 4096, 8, 128, 64, 64),
    (4, 4096, 2, 128, 32, 64),
    (1, 2048, 8, 128, 64, 64),
    (4, 2048, 1, 128, 32, 64),
    (1, 16384, 4, 128, 32, 64),
    (1, 32768, 1, 128, 16, 64),
    (1, 8192, 1, 256, 32, 64),
    (1, 8192, 2, 256, 64, 64),
    (1, 8192, 4, 256, 128, 64),
    (2, 8192, 1, 256, 32, 64),
    (1, 4096, 1, 256, 32, 64),
    (2, 4096, 2, 256, 64, 64),
    (1, 16384, 1, 256, 32, 64),
]
GDN = [
    (1, 8192, 16, 128, 32, 128),
    (1, 4096, 16, 128, 32, 128),
    (2, 4096, 16, 128, 32, 128),
    (4, 4096, 16, 128, 32, 128),
    (2, 8192, 16, 128, 32, 128),
    (1, 8192, 8, 128, 16, 128),
    (1, 4096, 8, 128, 16, 128),
    (4, 4096, 8, 128, 16, 128),
    (1, 16384, 8, 128, 16, 128),
    (1, 32768, 8, 128, 16, 128),
    (1, 8192, 4, 128, 8, 128),
    (2, 4096, 4, 128, 8, 128),
    (1, 4096, 4, 128, 8, 128),
    (4, 2048, 4, 128, 8, 128),
]
KDA = [
    (1, 8192, 32, 128, 32, 128),
    (1, 4096, 32, 128, 32, 128),
    (2, 4096, 32, 128, 32, 128),
    (4, 4096, 32, 128, 32, 128),
    (2, 8192, 32, 128, 32, 128),
    (1, 8192, 16, 128, 16, 128),
    (1, 4096, 16, 128, 16, 128),
    (2, 4096, 16, 128, 16, 128),
    (1, 16384, 16, 128, 16, 128),
    (1, 32768, 16, 128, 16, 128),
    (1, 8192, 8, 128, 8, 128),
    (2, 4096, 8, 128, 8, 128),
    (1, 4096, 8, 128, 8, 128),
    (4, 2048, 8, 128, 8, 128),
]


def random(*shape, **kinds):
    return torch.randn(*shape, **(BF16 | kinds))


def mamba(batch, seq, groups, state, heads, width):
    """The scan as Megatron's mixer calls it: gated, with dt's bias and softplus, on slices of the projection."""
    from mamba_ssm.ops.triton import ssd_combined as ssd

    inner, keys = heads * width, groups * state
    zxbcdt = random(batch, seq, 2 * inner + 2 * keys + heads)
    z, _, dt = torch.split(zxbcdt, [inner, inner + 2 * keys, heads], dim=-1)
    xbc = random(batch, seq, inner + 2 * keys)
    x, b, c = torch.split(xbc, [inner, keys, keys], dim=-1)
    x, z = x.view(batch, seq, heads, width), z.view(batch, seq, heads, width)
    b, c = b.view(batch, seq, groups, state), c.view(batch, seq, groups, state)
    a = -torch.rand(heads, device="cuda") * 15 - 1
    d = torch.ones(heads, device="cuda")
    bias = torch.full((heads,), -4.0, device="cuda")
    rest = {"D": d, "z": z, "dt_bias": bias, "dt_softplus": True}

    def forward():
        return ssd._mamba_chunk_scan_combined_fwd(
            x, dt, a, b, c, chunk_size=MAMBA_CHUNK, **rest
        )

    out, out_x = forward()[:2]
    grad, dz, dx = torch.randn_like(out), torch.empty_like(out), torch.empty_like(out)

    def backward():
        ssd._mamba_chunk_scan_combined_bwd(
            grad, x, dt, a, b, c, out_x, MAMBA_CHUNK, dx=dx, dz=dz, **rest
        )

    return forward, backward


def taped(run, *inputs):
    """Forward as it is called in training, and backward of it."""
    for tensor in inputs:
        tensor.requires_grad_()
    y = run()
    grad = torch.randn_like(y)

    def backward():
        torch.autograd.grad(y, inputs, grad, retain_graph=True)

    return run, backward


def delta(batch, seq, keys, key_width, values, value_width):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    q, k = (random(batch, seq, keys, key_width) for _ in "qk")
    q, k = (torch.nn.functional.normalize(t, dim=-1).detach() for t in (q, k))
    v = random(batch, seq, values, value_width)
    g = -torch.rand(batch, seq, values, device="cuda")
    beta = torch.rand(batch, seq, values, **BF16)
    return taped(lambda: chunk_gated_delta_rule(q, k, v, g, beta)[0], q, k, v, g, beta)


def kimi(batch, seq, keys, key_width, values, value_width):
    from fla.ops.kda import chunk_kda

    q, k = (random(batch, seq, keys, key_width) for _ in "qk")
    q, k = (torch.nn.functional.normalize(t, dim=-1).detach() for t in (q, k))
    v = random(batch, seq, values, value_width)
    g = -torch.rand(batch, seq, values, key_width, device="cuda")
    beta = torch.rand(batch, seq, values, **BF16)
    return taped(lambda: chunk_kda(q, k, v, g, beta)[0], q, k, v, g, beta)


def channels(shape):
    batch, seq, keys, key_width, values, value_width = shape
    return batch, seq, 2 * keys * key_width + values * value_width


def convolution_cuda(*shape):
    """causal_conv1d's, on a slice of a wider projection, as Mamba's mixer calls it."""
    import causal_conv1d_cuda as cuda

    batch, seq, dim = channels(shape)
    wide = random(batch, seq, dim + shape[4] * shape[5])
    x = wide[..., -dim:].transpose(1, 2)
    weight, bias = random(dim, WIDTH), random(dim)
    out, dx, grad = (
        torch.empty(batch, seq, dim, **BF16).transpose(1, 2) for _ in range(3)
    )

    def forward():
        cuda.causal_conv1d_fwd(x, weight, bias, None, None, out, None, True)

    def backward():
        dw, db = (torch.zeros_like(t, dtype=torch.float32) for t in (weight, bias))
        cuda.causal_conv1d_bwd(
            x, weight, bias, grad, None, None, None, dx, dw, db, None, True
        )

    return forward, backward


def convolution_triton(*shape):
    """fla's."""
    from fla.modules.causal_conv1d import causal_conv1d

    batch, seq, dim = channels(shape)
    x, weight = random(batch, seq, dim), random(dim, WIDTH)
    return taped(
        lambda: causal_conv1d(x, weight, None, activation="silu")[0], x, weight
    )


def gated_norm(*shape):
    """mamba_ssm's norm in groups, without a gate: Megatron gates in the scan."""
    from mamba_ssm.ops.triton import layernorm_gated as norm

    batch, seq, groups, _, heads, width = shape
    inner = heads * width
    x, weight, grad = (
        random(batch * seq, inner),
        random(inner),
        random(batch * seq, inner),
    )
    how = {
        "group_size": inner // groups,
        "norm_before_gate": False,
        "is_rms_norm": True,
    }
    _, mean, rstd = norm._layer_norm_fwd(x, weight, None, 1e-5, z=None, **how)

    def forward():
        norm._layer_norm_fwd(x, weight, None, 1e-5, z=None, **how)

    def backward():
        norm._layer_norm_bwd(grad, x, weight, None, 1e-5, mean, rstd, z=None, **how)

    return forward, backward


SETS = {
    "mamba2": (mamba, MAMBA, MAMBA_CHUNK),
    "causal_conv1d": (convolution_cuda, MAMBA, 0),
    "gated_norm": (gated_norm, MAMBA, 0),
    "gdn": (delta, GDN, 64),
    "kda": (kimi, KDA, 64),
    "fla_conv1d": (convolution_triton, GDN + KDA, 0),
}


def microseconds(run):
    """Median and least of the runs, a call."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP)
        start.record()
        for _ in range(CALLS):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / CALLS)
    return sorted(times)[RUNS // 2], min(times)


def kernels_of(run):
    """CUDA kernels of a call and their microseconds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        run()
        torch.cuda.synchronize()
    return [
        [e.key[:80], e.count, round(e.device_time_total, 1)] for e in p.key_averages()
    ]


def measure(out, sets):
    with open(out, "a") as file:

        def write(row):
            file.write(json.dumps(row) + "\n")
            file.flush()

        write(about())
        for name in sets or SETS:
            make, shapes, chunk = SETS[name]
            began = time.time()
            for number, shape in enumerate(shapes):
                try:
                    one(write, name, make, shape, chunk, number == 0)
                except Exception as error:
                    print(name, shape, repr(error)[:300], flush=True)
                torch.cuda.empty_cache()
            print(name, round(time.time() - began), "s", flush=True)


def one(write, name, make, shape, chunk, profile):
    for direction, run in zip(("forward", "backward"), make(*shape), strict=False):
        median, least = microseconds(run)
        names = ("batch", "seq", "keys", "key_dim", "values", "value_dim", "chunk")
        sizes = dict(zip(names, (*shape, chunk), strict=False))
        row = {
            "kernel": name,
            "direction": direction,
            **sizes,
            "us": round(median, 2),
            "least_us": round(least, 2),
        }
        if profile:
            try:
                row["kernels"] = kernels_of(run)
            except Exception as error:
                print("no profile:", repr(error)[:200], flush=True)
        write(row)


def about():
    import triton

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


def build(folder):
    """causal_conv1d's extension from its csrc, for this GPU only."""
    from torch.utils.cpp_extension import load

    csrc = Path(folder) / "csrc"
    names = (
        "causal_conv1d.cpp",
        "causal_conv1d_fwd.cu",
        "causal_conv1d_bwd.cu",
        "causal_conv1d_update.cu",
    )
    flags = [
        "-O3",
        "--expt-relaxed-constexpr",
        "--expt-extended-lambda",
        "--use_fast_math",
    ]
    flags += [
        f"-U__CUDA_NO_{kind}__"
        for kind in (
            "HALF_OPERATORS",
            "HALF_CONVERSIONS",
            "BFLOAT16_OPERATORS",
            "BFLOAT16_CONVERSIONS",
            "BFLOAT162_OPERATORS",
            "BFLOAT162_CONVERSIONS",
        )
    ]
    into = Path(os.environ["BUILT"])
    into.mkdir(exist_ok=True)
    load(
        "causal_conv1d_cuda",
        [str(csrc / name) for name in names],
        extra_include_paths=[str(csrc)],
        extra_cuda_cflags=flags,
        build_directory=str(into),
        is_python_module=False,
        verbose=False,
    )


def main(args):
    if args[0] == "--build":
        build(args[1])
    elif args[0] == "--warm":
        make, shapes, _ = SETS[args[1]]
        began = time.time()
        for run in make(*shapes[int(args[2])]):
            run()
        torch.cuda.synchronize()
        print("warm", *args[1:], round(time.time() - began), "s", flush=True)
    else:
        measure(args[0], args[1:])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
        sys.exit(1)
