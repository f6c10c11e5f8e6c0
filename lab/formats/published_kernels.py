"""Published times of single kernels (sim/costs/hardware/published.csv) as kernels with seconds."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prestep.sim.costs.gpu import HARDWARE
from prestep.sim.costs.terms import group
from prestep.sim.graph.kernel import Kernel, named, product

# Start of a GEMM as steps see it (floor of the H200's fit to traces), s; what a serving stack's call takes beyond it is
# the stack's and is taken off.
LAUNCH = 2.2e-6
GPUS = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "A100-80GB SXM": "a100",
    "A100 PCIe": "a100-pcie",
    "NVIDIA H100 80GB HBM3": "h100",
    "H100-80GB SXM": "h100",
    "H100 (AWS p5)": "h100",
    "NVIDIA H200": "h200",
    "H200 141GB SXM": "h200",
    "NVIDIA B200": "b200",
    "B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA A100 SXM": "a100",
    "NVIDIA A100 PCIe": "a100-pcie",
    "NVIDIA H100 SXM": "h100",
    "NVIDIA H200 SXM": "h200",
    "NVIDIA GH200 SXM": "gh200",
    "NVIDIA B200 SXM": "b200",
    "NVIDIA B300 SXM": "b300",
    "NVIDIA GB200 SXM": "gb200",
}
DTYPES = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "fp8 e4m3": "fp8",
    "fp8 e4m3 torch._scaled_mm": "fp8",
}
# SimuMax names operands column-major: TN is y = x w^T, NN its data gradient, NT its weight gradient.
LAYOUTS = {"TN": "nt", "NN": "nn", "NT": "tn"}
STAGES = {"fwd": "nt", "bwd_grad_act": "nn", "bwd_grad_w": "tn"}


@dataclass(frozen=True)
class Published:
    """A kernel that someone measured; ``accumulate`` if its result was added to an fp32 buffer."""

    gpu: str
    kernel: Kernel
    seconds: float
    source: str
    accumulate: bool = False


def published(path: Path = HARDWARE / "published.csv") -> list[Published]:
    """Every row that is a GEMM, a grouped GEMM or a causal attention kernel of a GPU that has a file here."""
    with path.open(newline="") as file:
        return list(_kernels(csv.DictReader(file)))


def _kernels(rows: Iterable[dict[str, str]]) -> Iterator[Published]:
    """The kernels of a table, in its order."""
    for row in rows:
        gpu, dtype = GPUS.get(row["gpu"]), DTYPES.get(row["dtype"])
        if gpu is None:
            continue
        if row["op"] == "Flash Attention 2.0":
            yield _flash(gpu, row)
        if dtype is None or row["op"] not in OPS:
            continue
        fields = dict(part.split("=") for part in row["shape"].replace(",", "").split())
        kernel, flops = OPS[row["op"]](fields, dtype)
        seconds, accumulate = _seconds(row, flops), fields.get("accumulate") == "True"
        yield Published(gpu, kernel, seconds, row["source"], accumulate)


def _seconds(row: dict[str, str], flops: float) -> float:
    """The time of a kernel, printed in ms, in TFLOP/s or as a fraction of a peak (in its unit)."""
    value = float(row["value"])
    if row["metric"] == "time":
        return value * 1e-3
    if row["metric"] == "throughput":
        return flops / (value * 1e12)
    peak = float(row["unit"].split()[1])
    return flops / (value * peak * 1e12)


def _flash(gpu: str, row: dict[str, str]) -> Published:
    """FlashAttention's own benchmark: 2,048 features in heads (assumed), the same rate for causal kernels (assumed)."""
    dim, batch, seq = (int(part.split()[1]) for part in row["shape"].split(", "))
    heads = 2048 // dim
    kernel = named("attention_fwd", (batch, heads, heads, seq, dim))
    return Published(
        gpu,
        kernel,
        2.0 * batch * heads * seq**2 * dim / (float(row["value"]) * 1e12),
        row["source"],
    )


def _gemm(fields: dict[str, str], dtype: str) -> tuple[Kernel, float]:
    m, n, k = (int(fields[name]) for name in "mnk")
    layout = LAYOUTS[fields.get("layout", "TN")]
    return product((m, n, k), dtype, layout), 2.0 * m * n * k


def _grouped(fields: dict[str, str], dtype: str) -> tuple[Kernel, float]:
    experts, rows, n, k = (int(fields[name]) for name in ("ng", "M", "N", "K"))
    layout = STAGES[fields["stage"]]
    whole = experts * rows
    shape = {"nt": (whole, n, k), "nn": (whole, k, n), "tn": (n, k, whole)}[layout]
    kernel = Kernel("aten _grouped_mm", (experts, *shape), dtype, layout)
    return kernel, 2.0 * whole * n * k


def _attention(
    kind: str, products: float
) -> Callable[[dict[str, str], str], tuple[Kernel, float]]:
    def kernel(fields: dict[str, str], dtype: str) -> tuple[Kernel, float]:
        names = ("batch", "head_num", "kv_head_num", "seq_len")
        batch, heads, kv_heads, seq = (int(fields[name]) for name in names)
        # Keys and values of unlike width (MLA) cost what their mean does.
        dim = (int(fields["qk_head_dim"]) + int(fields["v_head_dim"])) // 2
        # The fractions count the whole square, of which a causal kernel computes half: the forward of 64 heads would
        # reach 119 % of an A100's peak otherwise.
        whole = products * 2.0 * batch * heads * seq**2 * dim
        return named(kind, (batch, heads, kv_heads, seq, dim), dtype), whole

    return kernel


OPS = {
    "gemm": _gemm,
    "gemm (best shape found, MAMF)": _gemm,
    "matmul": _gemm,
    "group_matmul": _grouped,
    "sdp_fwd": _attention("attention_fwd", 2.0),
    "sdp_bwd": _attention("attention_bwd", 5.0),
}


def rows_of(
    gpu: str, kind: str, source: str, rows: Iterable[Published]
) -> dict[str, list[Published]]:
    """Rows of one GPU, kind and source by number format."""
    by_format: dict[str, list[Published]] = {}
    for row in rows:
        if (row.gpu, group(row.kernel)[0], row.source) == (gpu, kind, source):
            by_format.setdefault(row.kernel.dtype, []).append(row)
    return by_format
