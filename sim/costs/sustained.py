"""What arithmetic takes longer than in short bursts: hours of load, and other releases of CUDA."""

from __future__ import annotations

from sim.costs import gemm
from sim.costs.facts import GpuFacts
from sim.costs.roofline import Roofline
from sim.graph.kernel import Kernel

PRODUCTS = ("gemm", "gemm_bias")


def sustained(facts: GpuFacts, limits: Roofline, kernel: Kernel) -> float:
    """Time of a kernel under hours of load over its time in a burst; 1 unless arithmetic bounds it."""
    key = load_key(facts, limits, kernel)
    return facts.sustained[key] if key else 1.0


def load_key(facts: GpuFacts, limits: Roofline, kernel: Kernel) -> str:
    """Which of the factors `[sustained]` of the GPU's file a kernel has; "" for none.

    Products have one by number format; "grouped" and "attention" have factors of their own.
    """
    if not facts.sustained or not limits.arithmetic(kernel):
        return ""
    if kernel.kind in PRODUCTS:
        keys = [kernel.dtype, gemm.SUSTAINED.get(kernel.dtype, "")]
    elif kernel.kind == "grouped_gemm":
        keys = ["grouped"]
    else:
        family, _, _ = kernel.kind.removeprefix("flash2_").partition("_")
        keys = [family]
    return next((key for key in keys if key in facts.sustained), "")


def toolkit(facts: GpuFacts, kernel: Kernel, cuda: str) -> float:
    """Time of a product with the cuBLAS of a CUDA release over that of the tables.

    It is a share, and a part over the smallest size of the product: starting a tile is more of a short or narrow one.
    """
    if cuda not in facts.cuda or kernel.kind not in PRODUCTS:
        return 1.0
    share, of_starts = facts.cuda[cuda]
    return share + of_starts / min(kernel.shape)
