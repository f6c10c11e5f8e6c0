"""What arithmetic takes longer than in short bursts: hours of load, and other releases of CUDA."""

from __future__ import annotations

from prestep.sim.costs import gemm
from prestep.sim.costs.estimators.attention import is_fp8, widened
from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.facts import GpuFacts
from prestep.sim.graph.kernel import ATTENTION, GROUPS, Kernel


def sustained(facts: GpuFacts, limits: Roofline, kernel: Kernel) -> float:
    """Time of a kernel under hours of load over its time in a burst; 1 unless arithmetic bounds it."""
    key = load_key(facts, limits, kernel)
    return facts.sustained[key] if key else 1.0


def load_key(facts: GpuFacts, limits: Roofline, kernel: Kernel) -> str:
    """Which of the factors `[sustained]` of the GPU's file a kernel has; "" for none.

    They have one by number format; "grouped" has a factor of its own. Rows of attention that others published are of
    long runs.
    """
    if not facts.sustained or not limits.arithmetic(kernel):
        return ""
    if kernel.is_attention and facts.terms.keys() & ATTENTION:
        return ""
    dtype = widened(kernel).dtype
    keys = [dtype, gemm.SUSTAINED.get(dtype, "")]
    if kernel.kind in GROUPS:
        keys = ["grouped"]
    return next((key for key in keys if key in facts.sustained), "")


def toolkit(facts: GpuFacts, kernel: Kernel, cuda: str) -> float:
    """Time of a product or of attention with the libraries of a CUDA release over that of the tables.

    Of a product it is a share, and a part over its smallest size: starting a tile is more of a short or narrow one.
    """
    if kernel.is_attention:
        over = facts.cuda_fp8 if is_fp8(kernel) else facts.cuda_attention
        return over[cuda].of(kernel) if cuda in over else 1.0
    if cuda not in facts.cuda or not kernel.is_product:
        return 1.0
    share, of_starts = facts.cuda[cuda]
    return share + of_starts / min(kernel.shape)
