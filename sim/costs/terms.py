"""Per-kind parametric times `sum(coefficient * term)` and the log2 axes on which measured corrections live.

A term is something the hardware has to do (elements to move, products to form), so every coefficient is a cost per
unit of it and cannot be negative; the terms, and so the times, grow with every size of the shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from prestep.sim.costs import gemm
from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import ATTENTION, GEMM, PREFIX, PRODUCTS, Kernel


def group(kernel: Kernel) -> tuple[str, str, str]:
    """The table that a kernel is read from: (kind, layout, dtype), after aliases and regimes."""
    if kernel.is_attention:
        return kernel.direction, _beyond_causal(kernel), kernel.dtype
    kind, layout = ALIASES.get(kernel.kind, kernel.kind), kernel.layout
    if kind in POOLED:
        layout = ""  # names of functions (sim.costs.generated)
    if kind == GEMM:
        layout = layout[:2]  # without how rows lie, and of which type the result is
    return kind, layout, kernel.dtype


def _beyond_causal(kernel: Kernel) -> str:
    """What sets attention apart from the causal one of as many keys as queries; "" for that."""
    marks = kernel.layout.split("_")
    _, _, _, queries, keys, _ = kernel.shape
    others = [mark for mark in marks if mark != "causal"]
    if "causal" not in marks or queries != keys:
        others.append("all" if queries == keys else "uneven")
    return "_".join(others)


# Kinds that were not measured and are bound in the same way as one that was: their times are a guess.
BORROWED = {
    f"fused_{name}{part}": f"fused_silu{part}"
    for name in ("gelu", "relu")
    for part in ("", "_bwd", "_mul", "_mul_bwd")
}
# Kinds of generated code that is nothing in particular: read from the rows of all that are like it.
POOLED = {
    "fused_pointwise": (
        *("fused_add", "fused_mul", "fused_mul_bwd", "fused_rope", "fused_rope_bwd"),
        *("fused_silu", "fused_silu_bwd", "fused_silu_mul", "fused_silu_mul_bwd"),
        "fused_transpose",
    ),
    "fused_reduction": ("fused_norm", "fused_add_norm", "fused_norm_bwd"),
}
# Kinds that run the same CUDA kernel as another, and the borrowed ones.
ALIASES = BORROWED | dict.fromkeys(PRODUCTS, GEMM)


def _attention(kernel: Kernel) -> tuple[float, ...]:
    batch, heads, kv_heads, seq, _, dim = kernel.shape
    lanes = float(batch * heads * seq)
    # Backward of grouped queries adds up the heads of a group.
    shared = lanes * dim if heads != kv_heads else 0.0
    return 1.0, lanes * seq * dim, lanes * seq, lanes * dim, shared


def _grouped(kernel: Kernel) -> tuple[float, ...]:
    # Products one after the other on a few streams: starts, weights and arithmetic add up.
    flops, size = work(kernel)
    return float(kernel.shape[0]), flops, size


def _log(*sizes: float) -> tuple[float, ...]:
    return tuple(math.log2(size) for size in sizes)


def _attention_axes(kernel: Kernel) -> tuple[float, ...]:
    batch, heads, kv_heads, seq, _, dim = kernel.shape
    return *_log(batch * heads, seq, dim), 0.3 * (heads != kv_heads)


def _product_axes(kernel: Kernel) -> tuple[float, ...]:
    count, shape = gemm.products(kernel)
    return _log(count, *shape)


Group = tuple[str, str, str]
Terms = Callable[[Kernel], tuple[float, ...]]

# kind -> (terms, axes); products have their own base (gemm.py), streams are curves.
LINEAR: dict[str, tuple[Terms, Terms]] = {
    **dict.fromkeys(ATTENTION, (_attention, _attention_axes)),
    "aten _grouped_mm": (_grouped, _product_axes),
}

GEMM_AXES: Terms = _product_axes


def name(kind: str, layout: str = "") -> str:
    """What a file calls the coefficients of a kind in a layout."""
    return "_".join(filter(None, (kind.removeprefix(PREFIX), layout)))


def linear(term: Terms, coefficients: Sequence[float], kernel: Kernel) -> float:
    """Seconds of a kernel by its kind's terms."""
    return sum(a * b for a, b in zip(coefficients, term(kernel), strict=True))
