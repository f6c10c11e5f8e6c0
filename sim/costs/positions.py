"""Positions of ATen operations among measured rows of their kind, in octaves of their sizes: what is near lies near.

Kernels that libraries choose apart from others lie apart, by `UNTUNED` or `NARROWER` octaves.
"""

from __future__ import annotations

import math

from prestep.sim.costs.kinds import DTYPE_BYTES, work
from prestep.sim.graph.kernel import BATCHES, Kernel

# Octaves (guess): cuDNN's masked kernels for heads of 129 to 192 take three times what those of 128 and 256 suggest;
# convolutions in groups of 24 or 56 channels take two to ten times what those of 16, 32 or 64 do for as many flops.
UNTUNED = 4.0
# cuBLAS has other, half as quick kernels where rows end within 16 bytes (measured: 72 to 194 and 229 to 496 TFLOP/s).
NARROWER = 2.0
FEWEST = 8  # channels for which cuDNN has its usual kernels: colours take others
#: A filter for every picture: channels from which on its gradient is a kernel of its own with its copies (2 to 4 times
#: as many where outputs are as many as inputs).
SAMPLES, WIDE = "samples", 40


def _octaves(*sizes: float) -> tuple[float, ...]:
    return tuple(math.log2(max(size, 1.0)) for size in sizes)


def _attention_axes(kernel: Kernel) -> tuple[float, ...]:
    batch, heads, kv_heads, length, kv_length, dim = kernel.shape
    # Batches scale: what another one tells is worth more.
    lanes = 0.4 * math.log2(batch * heads)
    apart = UNTUNED * ("mask" in kernel.layout and 128 < dim <= 192)
    grouped = 0.3 * (heads != kv_heads)
    return lanes, *_octaves(length, kv_length, dim), grouped, apart


def _convolution_axes(kernel: Kernel) -> tuple[float, ...]:
    n, c, h, w, k, r, s, stride, groups = kernel.shape
    side = math.sqrt(r * s)  # of a square filter of as many elements
    few = groups == 1 and min(c, k) < FEWEST
    apart = UNTUNED * _odd_groups(c // groups, groups), UNTUNED * few
    if SAMPLES in kernel.layout:  # what counts is how wide one filter is
        n, c, k, groups = groups, c // groups, k // groups, 1
        apart = UNTUNED * is_wide(kernel), 0.0
    sizes = _octaves(h * w / stride**2, c, k, side, stride, groups)
    kinds = NARROWER * _is_unaligned(kernel), UNTUNED * _is_volume(kernel)
    passes = NARROWER * kernel.layout.endswith(("filter", "picture"))
    return 0.3 * math.log2(n), *sizes, *apart, *kinds, passes


def _odd_groups(width: int, groups: int) -> bool:
    """Whether a convolution has groups of several channels, but of no power of two."""
    return groups > 1 and width > 1 and width & (width - 1) > 0


def _is_volume(kernel: Kernel) -> bool:
    """Whether a convolution is of volumes, whose depth is counted in the height, and has kernels of its own."""
    _, _, h, w, _, r, s, *_ = kernel.shape
    return r > s or (r == s and h > 4 * w > 4)


def _is_unaligned(kernel: Kernel) -> bool:
    """Whether a layer of single pixels is a product whose rows, the pixels of a channel, end within 16 bytes."""
    _, _, h, w, _, r, s, stride, groups = kernel.shape
    whole = r * s == stride == groups == 1 and not kernel.layout
    return whole and h * w * DTYPE_BYTES.get(kernel.dtype, 1) % 16 > 0


def stream_axes(kernel: Kernel) -> tuple[float, ...]:
    """Position of a kernel of any sizes among streams: as many bytes, of elements of four that are read and written."""
    if len(kernel.shape) == 1:
        return axes(kernel)
    return *_octaves(work(kernel)[1] / 8), 3.0


def axes(kernel: Kernel) -> tuple[float, ...]:
    """Position of a kernel among the rows of its kind, in octaves."""
    if kernel.is_attention:
        return _attention_axes(kernel)
    if "convolution" in kernel.kind and len(kernel.shape) == 9:
        return _convolution_axes(kernel)
    if kernel.kind in BATCHES:
        return 0.3 * math.log2(kernel.shape[0]), *_octaves(*kernel.shape[1:])
    if len(kernel.shape) == 1:
        return *_octaves(kernel.shape[0]), math.log2(work(kernel)[1] / kernel.shape[0])
    return _octaves(*kernel.shape)


def is_wide(kernel: Kernel) -> bool:
    """Whether cuDNN computes the gradients of a filter for every picture picture by picture."""
    _, c, _, _, k, high, across, _, groups = kernel.shape
    inputs, outputs = c // groups, k // groups
    together = 1 if inputs != outputs else 4 if kernel.dtype == "tf32" else 2
    return inputs >= WIDE * together and high * across > 1
