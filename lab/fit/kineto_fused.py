"""Which kernel of prestep a TorchInductor kernel of a Kineto trace is, and the bytes that it moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prestep.sim.graph.kernel import Kernel

# TorchInductor names a kernel after its operators; the first that fits.
FUSED = (
    ("cat_mul_split_sub", "fused_rope"),
    ("cat_clone_mul_neg", "fused_rope_bwd"),
    ("clone_transpose", "fused_transpose"),
    ("mul_silu_silu_backward", "fused_silu_mul_bwd"),
    ("silu_silu_backward", "fused_silu_bwd"),
    ("mul_silu", "fused_silu_mul"),
    ("view_silu", "fused_silu"),
    ("view_mul", "fused_mul"),
    ("rms_norm_backward", "fused_norm_bwd"),
    ("rms_norm__unsafe_view_add", "fused_add_norm"),
    ("rms_norm", "fused_norm"),
    ("view_add", "fused_add"),
)
# Passes over the largest tensor, as the workload counts them (a tensor updated in place is read and written).
FUSED_PASSES = {
    "fused_norm": 2,
    "fused_rope": 2,
    "fused_rope_bwd": 2,
    "fused_transpose": 2,
    "fused_silu": 2,
    "fused_silu_bwd": 3,
    "fused_silu_mul": 3,
    "fused_silu_mul_bwd": 5,
    "fused_mul": 3,
    "fused_mul_bwd": 5,
    "fused_norm_bwd_weight": 7,
}


def fused_kernel(op: Mapping[str, Any]) -> Kernel:
    """A TorchInductor kernel. Graphs of a whole block keep views (tokens, width); those of single modules do not."""
    tensors: list[list[int]] = [dims for dims in op["args"]["Input Dims"] if dims]
    elements = max(map(math.prod, tensors))
    full = [dims for dims in tensors if math.prod(dims) == elements]
    kind = next((kind for word, kind in FUSED if word in op["name"]), "fused")
    if kind == "fused_norm_bwd" and len(tensors) == 2:
        return _of_a_weight(tensors)
    if kind == "fused_norm_bwd" and _sums_a_weight(op, tensors):
        kind = "fused_norm_bwd_weight"
    if kind == "fused_mul" and len(full) == 4:
        kind = "fused_mul_bwd"
    return Kernel(kind, (elements,), bytes=2.0 * _passes(kind, full) * elements)


def _sums_a_weight(op: Mapping[str, Any], tensors: list[list[int]]) -> bool:
    """Whether a norm's backward kernel also sums the weight's gradient."""
    columns = sum(dims[-1] == 1 for dims in tensors)
    return columns > 1 and "triton_red" in op["name"]


def _passes(kind: str, full: list[list[int]]) -> int:
    """Passes of a fused kernel over its largest tensor; `full` are the tensors of that size."""
    is_whole_block = any(len(dims) == 2 for dims in full)
    counted = {
        "fused_add": len(full) + 1,
        "fused_add_norm": 3 if is_whole_block else 4,
        "fused_norm_bwd": 6 if is_whole_block else 5,
    }
    return FUSED_PASSES.get(kind) or counted.get(kind, len(full))


def _of_a_weight(tensors: list[list[int]]) -> Kernel:
    """What a norm's weight gradient ends with: a sum of its parts, or a cast."""
    width = tensors[-1][0]
    if len(tensors[0]) > 1:
        return Kernel("fused_sum", (width,), bytes=66.0 * width)
    return Kernel("fused_cast", (width,), bytes=6.0 * width)
