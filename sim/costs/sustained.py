"""What arithmetic takes longer than in short bursts: hours of load, and other releases of CUDA."""

from __future__ import annotations

from prestep.sim.costs import gemm
from prestep.sim.costs.estimators.attention import is_fp8
from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.facts import GpuFacts
from prestep.sim.costs.kinds import ATTENTIONS
from prestep.sim.graph.kernel import GROUPS, Kernel


def sustained(facts: GpuFacts, limits: Roofline, kernel: Kernel) -> float:
    """Time of a kernel under hours of load over its time in a burst; 1 unless arithmetic bounds it."""
    key = load_key(facts, limits, kernel)
    return facts.sustained[key] if key else 1.0


def load_key(facts: GpuFacts, limits: Roofline, kernel: Kernel) -> str:
    """Which of the factors `[sustained]` of the GPU's file a kernel has; "" for none.

    They have one by number format; "grouped" and "attention" have factors of their own.
    """
    if not facts.sustained or not limits.arithmetic(kernel):
        return ""
    own = "attention" if "attention" in kernel.kind else ""
    if kernel.kind in GROUPS:
        own = "grouped"
    keys = [own] if own else [kernel.dtype, gemm.SUSTAINED.get(kernel.dtype, "")]
    return next((key for key in keys if key in facts.sustained), "")


def toolkit(facts: GpuFacts, kernel: Kernel, cuda: str) -> float:
    """Time of a product or of attention with the libraries of a CUDA release over that of the tables.

    Of a product it is a share, and a part over its smallest size: starting a tile is more of a short or narrow one.
    """
    if kernel.kind in ATTENTIONS:
        over = facts.cuda_fp8 if is_fp8(kernel) else facts.cuda_attention
        return over[cuda].of(kernel) if cuda in over else 1.0
    if cuda not in facts.cuda or not kernel.is_product:
        return 1.0
    share, of_starts = facts.cuda[cuda]
    return share + of_starts / min(kernel.shape)
