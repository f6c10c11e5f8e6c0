"""Kernels of a step in 32 bits: the ATen operations that PyTorch launches, as captured programs name them.

Some operators here say their kernels in 16 bits. Where GPUs measured the ATen operation in fp32 (memory-efficient
attention, elementwise operators) a wide tape launches that. The others are read by the bytes that they move,
which operators state from their tensors.
"""

from __future__ import annotations

from functools import cache

from prestep.sim.costs.kinds import STREAM_PASSES
from prestep.sim.graph.kernel import Kernel

ELEMENT = 4  # bytes
ATTENTION = {
    "attention_fwd": "_scaled_dot_product_efficient_attention",
    "attention_bwd": "_scaled_dot_product_efficient_attention_backward",
}
#: Operations over elements that are not said as operations yet.
ELEMENTWISE = ("add", "sub", "mul", "div", "neg", "copy", "cat", "fill")


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
        size = kernel.bytes or STREAM_PASSES[kind] * ELEMENT * count
        layout = "strided" if kernel.layout.startswith("strided") else kernel.layout
        return Kernel(f"aten {kind}", kernel.shape, "fp32", layout, size)
    return kernel


def _attention(kernel: Kernel) -> Kernel:
    """Memory-efficient attention; it multiplies fp32 in three passes of TF32, whatever products may do."""
    batch, heads, kv_heads, length, dim = kernel.shape
    shape = batch, heads, kv_heads, length, length, dim
    name = f"aten {ATTENTION[kernel.kind]}"
    return Kernel(name, shape, "fp32", "causal", kernel.bytes, kernel.flops)
