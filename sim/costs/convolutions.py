"""What a convolution must at least do: a product for each pass, and copies of pictures to channels last and back."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prestep.sim.costs.kinds import on_cuda_cores
from prestep.sim.costs.positions import SAMPLES, is_wide
from prestep.sim.graph.kernel import Kernel

#: Words of a layout: the gradient of the filter alone, or of the picture alone.
FILTER, PICTURE = "filter", "picture"
#: cuDNN copies a picture by blocks of so many channels by so many pixels; seconds of a block, also where there are
#: fewer channels (measured: 1.40 to 1.42 ns of 3 and 4 channels, 1.8 to 2.5 ns of full blocks).
TILE, EACH_TILE = 32, 1.4e-9
#: Seconds of the gradient of a filter for every picture, a narrow and a wide one (measured: 0.2 to 1.5, 4 to 18 us).
EACH_SAMPLE = (0.4e-6, 8e-6)
#: Filters' gradients as convolutions, whose filter is a picture: seconds of a place and channel of it. Results are few,
#: and no kernel splits the sum (measured: 20 to 29 ns in rows for fitting).
SWAPPED, EACH_PLACE = "swapped", 24e-9

#: PyTorch's generic kernels for a filter a channel, which is not square: seconds of an element, and of a tap of it,
#: forward and of both gradients (fitted to rows of an H200 with 3 to 31 taps: 10.2 to 20.8 ps, 13.3 to 92.5 ps).
BY_CHANNEL = (9.4e-12, 0.345e-12), (8.6e-12, 2.15e-12)


def is_convolution(kernel: Kernel) -> bool:
    """Whether a kernel is a convolution of known sizes."""
    return "convolution" in kernel.kind and len(kernel.shape) == 9


def products(kernel: Kernel) -> Iterator[tuple[int, int, int]]:
    """Rows, columns and depth of a pass as a product; none where channels are in groups or the filter is a picture."""
    n, c, h, w, k, r, s, stride, groups = kernel.shape
    if groups > 1 or kernel.layout == SWAPPED or SAMPLES in kernel.layout:
        return
    pixels = max(1, n * h * w // stride ** (1 if h == r == 1 else 2))
    if not kernel.kind.endswith("backward"):
        yield pixels, k, c * r * s
        return
    if not kernel.layout.endswith(FILTER):
        yield pixels, c, k * r * s
    if not kernel.layout.endswith(PICTURE):
        yield k, c * r * s, pixels


def turned(kernel: Kernel, bandwidth: float) -> float:
    """Seconds to copy operands to channels last, which tensor cores need, and the result back."""
    n, c, h, w, k, r, s, stride, groups = kernel.shape
    # PyTorch's own kernels for a filter a channel, and products of each picture, read channels first.
    single = groups == c > 1 or r * s == stride == 1
    as_it_lies = "channels_last" in kernel.layout or kernel.layout == SWAPPED
    if single or as_it_lies or on_cuda_cores(kernel.kind, kernel.dtype):
        return 0.0
    scale = stride ** (1 if h == r == 1 else 2)
    places = h * w * scale if "transposed" in kernel.layout else h * w // scale
    tensors = (n, c, h * w), (n, k, places), (k, c // groups, r * s)
    both = kernel.kind.endswith("backward") and not kernel.layout.endswith((FILTER, PICTURE))  # fmt: skip
    bytes_of = 8 if kernel.dtype == "tf32" else 4  # read and written
    total = 0.0
    for count, channels, size in tensors:
        tiles = count * math.ceil(channels / TILE) * math.ceil(size / TILE)
        moved = bytes_of * count * channels * size / bandwidth
        total += max(EACH_TILE * tiles, moved)
    return (1 + both) * total


def by_sample(kernel: Kernel) -> float:
    """Seconds for gradients of one filter per picture: a wide one is a kernel with copies for each picture."""
    own = kernel.kind.endswith("backward") and SAMPLES in kernel.layout
    return kernel.shape[-1] * EACH_SAMPLE[is_wide(kernel)] if own else 0.0


def by_filter(kernel: Kernel) -> float:
    """Seconds of a convolution whose filter is a whole picture: one block of threads sums all of it."""
    if kernel.layout != SWAPPED:
        return 0.0
    _, channels, _, _, _, high, wide, _, groups = kernel.shape
    return EACH_PLACE * channels / groups * high * wide


def by_channel(kernel: Kernel) -> float:
    """Seconds of PyTorch's own kernels where each channel has a filter along a sequence, which arithmetic bounds."""
    n, c, h, w, k, r, s, _, groups = kernel.shape
    element, tap = BY_CHANNEL[kernel.kind.endswith("backward")]
    own = groups == c == k > 1 and r != s
    return n * k * h * w * (element + tap * r * s) if own else 0.0
