"""Kernels of a step in 32 bits: the ATen operations that PyTorch launches, as captured programs name them.

Some operators here say their kernels in 16 bits. Where GPUs measured the ATen operation in fp32 (memory-efficient
attention, norms, elementwise operators) a wide tape launches that. The others are read by the bytes that they move,
which operators state from their tensors.
"""

from __future__ import annotations

import math
from functools import cache

from prestep.sim.graph.kernel import Kernel

ELEMENT = 4  # bytes
ATTENTION = {
    "attention_fwd": "_scaled_dot_product_efficient_attention",
    "attention_bwd": "_scaled_dot_product_efficient_attention_backward",
}
#: Operations over elements, with the values of an element that they read and write.
ELEMENTWISE = {
    "add": 3,
    "sub": 3,
    "mul": 3,
    "div": 2,
    "neg": 2,
    "copy": 2,
    "cat": 2,
    "fill": 1,
}
#: Operations over rows, with passes over them.
ROWS = {
    "rms_norm_fwd": ("_fused_rms_norm", 2),
    "rms_norm_bwd": ("_fused_rms_norm_backward", 3),
    "layer_norm_fwd": ("native_layer_norm", 2),
    "layer_norm_bwd": ("native_layer_norm_backward", 3),
}
#: Halves of a backward pass that no ATen operation is, priced by their shape: as many bytes lie in rows twice as long.
HALVES = (
    "rms_norm_bwd_input",
    "rms_norm_bwd_weight",
    "layer_norm_bwd_input",
    "layer_norm_bwd_weight",
)


@cache
def in_32_bits(kernel: Kernel) -> Kernel:
    """A kernel as it runs on a tape of 32-bit numbers."""
    kind = kernel.kind
    if kernel.dtype != "bf16":  # indices, and operations that say their types
        return kernel
    if kind in ATTENTION:
        return _attention(kernel)
    if kind in ELEMENTWISE:
        count = kernel.shape[0]
        size = kernel.bytes or float(ELEMENTWISE[kind] * ELEMENT * count)
        layout = "strided" if kernel.layout.startswith("strided") else kernel.layout
        return Kernel(f"aten {kind}", kernel.shape, "fp32", layout, size)
    if kind in ROWS:
        name, passes = ROWS[kind]
        size = float(passes * ELEMENT * math.prod(kernel.shape))
        return Kernel(f"aten {name}", kernel.shape, "fp32", bytes=size)
    if kind in HALVES:
        rows, columns = kernel.shape
        return Kernel(kind, (rows, 2 * columns), bytes=kernel.bytes)
    return kernel


def _attention(kernel: Kernel) -> Kernel:
    """Memory-efficient attention; it multiplies fp32 in three passes of TF32, whatever products may do."""
    batch, heads, kv_heads, length, dim = kernel.shape
    shape = batch, heads, kv_heads, length, length, dim
    name = f"aten {ATTENTION[kernel.kind]}"
    return Kernel(name, shape, "fp32", "causal", kernel.bytes, kernel.flops)
