"""Per-kind parametric times `sum(coefficient * term)` and the log2 axes on which measured corrections live.

A term is something the hardware has to do (elements to move, products to form), so every coefficient is a cost per
unit of it and cannot be negative; the terms, and so the times, grow with every size of the shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import Kernel

# PyTorch's embedding backward sorts the indices first above this many tokens (Embedding.cu, num_indices <= 3072).
EMBEDDING_SORTS_ABOVE = 3072


def group(kernel: Kernel) -> tuple[str, str, str]:
    """The table that a kernel is read from: (kind, layout, dtype), after aliases and regimes."""
    kind, layout = ALIASES.get(kernel.kind, kernel.kind), kernel.layout
    if kind == "embedding_bwd":
        layout = "sorted" if kernel.shape[0] > EMBEDDING_SORTS_ABOVE else "small"
    if kind in POOLED:
        layout = ""  # names of functions (sim.costs.generated)
    if kind.startswith("conv") and kernel.shape[1] < 8:
        layout = "padded"  # too few channels for tensor cores: cuDNN pads them first
    return kind, layout, kernel.dtype


# Kinds that were not measured and are bound in the same way as one that was: their times are a guess.
BORROWED = {
    "gelu_backward": "silu_backward",
    "softmax_bwd": "softmax",
    **{
        f"fused_{name}{part}": f"fused_silu{part}"
        for name in ("gelu", "relu")
        for part in ("", "_bwd", "_mul", "_mul_bwd")
    },
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
ALIASES = BORROWED | {
    "sub": "add",
    "transpose_copy": "copy",
    "memset": "fill",
    "flash2_attention_fwd": "attention_fwd",
    "flash2_attention_bwd": "attention_bwd",
    "layer_norm_bwd": "rms_norm_bwd",
    "layer_norm_bwd_input": "rms_norm_bwd_input",
    "layer_norm_bwd_weight": "rms_norm_bwd_weight",
}


def _product(kernel: Kernel) -> tuple[float, ...]:
    return 1.0, float(math.prod(kernel.shape[:2]))


def _attention(kernel: Kernel) -> tuple[float, ...]:
    batch, heads, kv_heads, seq, dim = kernel.shape
    lanes = float(batch * heads * seq)
    shared = (
        lanes * dim if heads != kv_heads else 0.0
    )  # grouped-query backward reduces the heads of a group
    return 1.0, lanes * seq * dim, lanes * seq, lanes * dim, shared


def _grouped(kernel: Kernel) -> tuple[float, ...]:
    flops, size = work(
        kernel
    )  # products one after the other on a few streams: starts, weights and arithmetic add up
    return float(kernel.shape[0]), flops, size


def _norm(kernel: Kernel) -> tuple[float, ...]:
    rows, columns = kernel.shape
    return 1.0, float(rows * columns), float(rows)


def _batchnorm(kernel: Kernel) -> tuple[float, ...]:
    elements, channels = kernel.shape
    return 1.0, float(elements), elements / math.sqrt(channels)


def _tokens(kernel: Kernel) -> tuple[float, ...]:
    # One block of threads for all tokens up to its size, a loop beyond.
    return 1.0, float(min(kernel.shape[0], 2048)), float(kernel.shape[0])


def _embedding_backward(kernel: Kernel) -> tuple[float, ...]:
    tokens, hidden, _ = kernel.shape
    return 1.0, float(tokens), float(tokens * hidden)


def _work(kernel: Kernel) -> tuple[float, ...]:
    flops, size = work(kernel)
    return 1.0, flops, size


def _log(*sizes: float) -> tuple[float, ...]:
    return tuple(math.log2(size) for size in sizes)


def _attention_axes(kernel: Kernel) -> tuple[float, ...]:
    batch, heads, kv_heads, seq, dim = kernel.shape
    return *_log(batch * heads, seq, dim), 0.3 * (heads != kv_heads)


def _conv_axes(kernel: Kernel) -> tuple[float, ...]:
    n, c, h, w, k, r, _, stride = kernel.shape
    # Batches scale: what a batch of one shape tells about another is worth more than another shape.
    return 0.3 * math.log2(n), *_log(h * w / stride**2, c, k, r, stride)


def _shape_axes(kernel: Kernel) -> tuple[float, ...]:
    return _log(*kernel.shape)


def _first_two(kernel: Kernel) -> tuple[float, ...]:
    return _log(*kernel.shape[:2])


Group = tuple[str, str, str]
Terms = Callable[[Kernel], tuple[float, ...]]

# Kinds over rows and columns, whose times grow with both.
NORMS = (
    *("rms_norm_fwd", "rms_norm_bwd", "rms_norm_bwd_input", "rms_norm_bwd_weight"),
    *("layer_norm_fwd", "softmax", "log_softmax_fwd", "log_softmax_bwd"),
)
# kind -> (terms, axes); "gemm" has its own base (gemm.py), streams are curves.
LINEAR: dict[str, tuple[Terms, Terms]] = {
    **dict.fromkeys(("attention_fwd", "attention_bwd"), (_attention, _attention_axes)),
    "grouped_gemm": (_grouped, _shape_axes),
    **dict.fromkeys(NORMS, (_norm, _shape_axes)),
    **dict.fromkeys(("batchnorm_fwd", "batchnorm_bwd"), (_batchnorm, _shape_axes)),
    **dict.fromkeys(("nll_loss_fwd", "nll_loss_bwd"), (_tokens, _shape_axes)),
    "embedding_fwd": (_product, _first_two),
    "embedding_bwd": (_embedding_backward, _first_two),
    **dict.fromkeys(("conv_fwd", "conv_dgrad", "conv_wgrad"), (_work, _conv_axes)),
}

GEMM_AXES: Terms = _shape_axes


def linear(term: Terms, coefficients: Sequence[float], kernel: Kernel) -> float:
    """Seconds of a kernel by its kind's terms."""
    return sum(a * b for a, b in zip(coefficients, term(kernel), strict=True))
