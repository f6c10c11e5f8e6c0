"""A kernel takes no longer than a larger one, since its operands can be filled up: times never fall when a size grows.

Tables are interpolated between rows that noise and choices of a library move by some per cent. Where the work hardly
grows with a size (few rows by wide weights), that makes a larger kernel faster than a smaller one. The time of a kernel
is the least of its own and those of larger ones.

Exceptions are the libraries' own. A product whose rows lie at no multiple of 16 bytes is not filled up (`unaligned` of
a GPU's file), a convolution of fewer than eight channels takes another algorithm, and so do heads of other widths: no
other kernel stands in for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.sim.costs import gemm
from prestep.sim.costs.kinds import STREAM_PASSES
from prestep.sim.graph.kernel import GROUPS, Kernel

if TYPE_CHECKING:
    from prestep.sim.costs.gpu import Gpu

PREFIX = "aten "
BY_INDEX = ("aten index", "aten gather")
#: Sizes of an octave that a kernel is filled up to: eight of a product, whose tiles are narrow; four of others.
PRODUCT_STEPS, OTHER_STEPS = 8, 4
#: A size is not searched further once a kernel takes so much longer: what it does grows, not its noise.
GROWN = 1.3
#: Largest size looked at.
LARGEST = 2**40
#: Products that could be filled up: with a bias, or into what is there, libraries choose kernels by other rules.
FILLED = ("gemm", "aten mm", "aten _scaled_mm")
#: Which sizes can be filled up; of kinds not listed, none.
AXES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(STREAM_PASSES, (0,)),
    **dict.fromkeys(FILLED, (0, 1, 2)),
    **dict.fromkeys(GROUPS, (1, 2, 3)),
}


def axes(kernel: Kernel) -> tuple[int, ...]:
    """Which sizes of a kernel can be filled up.

    Examples
    --------
    >>> axes(Kernel("aten mm", (192, 8192, 8192), "bf16", "nt"))
    (0, 1, 2)
    """
    if kernel.is_attention:
        _, _, _, queries, keys, _ = kernel.shape
        return (0, 3) if queries == keys else (0,)
    if "batch_norm" in kernel.kind or kernel.kind.startswith(BY_INDEX):
        # More channels are more blocks of threads, and a row's width chooses the kernel.
        return (0,)
    if kernel.kind.startswith(PREFIX) and kernel.kind not in AXES:
        simple = len(kernel.shape) <= 2
        return tuple(range(len(kernel.shape))) if simple else ()
    return AXES.get(kernel.kind, ())


def filled_up(
    gpu: Gpu,
    kernel: Kernel,
    seconds: Callable[[Kernel], float],
    further: tuple[int, ...] = (),
) -> float:
    """Seconds of a kernel by a table, no more than of a larger one; `further`: more sizes that can be filled up."""
    if gemm.is_tiled(kernel):
        # A library takes longer where rows lie at no multiple of 16 bytes than for a larger product.
        _, shape = gemm.products(kernel)
        if gemm.unaligned(shape, kernel.layout, kernel.dtype):
            return seconds(kernel)

    def remembered(one: Kernel) -> float:
        known = gpu.unfilled.get(one)
        if known is None:
            known = gpu.unfilled[one] = seconds(one)
        return known

    over = axes(kernel) + further
    time = least(kernel, remembered, over)
    if len(over) != 1:
        return time
    # A table may dip between two sizes that the search looks at: no lower than where the smaller one's search ended.
    (axis,) = over
    size = kernel.shape[axis]
    smaller = int(size) // (step := _step(size, _steps(kernel))) * step
    if not 0 < smaller < size:
        return time
    return max(time, least(_resized(kernel, axis, smaller), remembered, over))


def least(
    kernel: Kernel, seconds: Callable[[Kernel], float], over: tuple[int, ...]
) -> float:
    """Seconds of a kernel, or of a larger one if that takes less.

    Examples
    --------
    >>> dip = {4: 3.0, 5: 2.5, 6: 2.0, 7: 5.0}
    >>> least(Kernel("sum", (4,), "bf16"), lambda one: dip[one.shape[0]], (0,))
    2.0
    """
    best, at = seconds(kernel), kernel
    while True:
        # From the best one so far, one size after the other: what two sizes filled up at once allow comes in turn.
        start = at
        for axis in over:
            for larger in _larger(start, axis):
                time = seconds(larger)
                if time < best:
                    best, at = time, larger
                elif time > GROWN * best:
                    break
        if at is start:
            return best


def _larger(kernel: Kernel, axis: int) -> Iterator[Kernel]:
    """The kernel with a size filled up, step by step."""
    for grown in sizes_above(kernel.shape[axis], _steps(kernel)):
        yield _resized(kernel, axis, grown)


def _steps(kernel: Kernel) -> int:
    return PRODUCT_STEPS if gemm.is_tiled(kernel) else OTHER_STEPS


def _resized(kernel: Kernel, axis: int, size: int) -> Kernel:
    """The kernel with another size; what it says of its own work changes in proportion."""
    # Of attention of as many keys as queries, both change.
    last = axis + 1 if kernel.is_attention and axis == 3 else axis
    sizes = (size,) * (last + 1 - axis)
    shape = (*kernel.shape[:axis], *sizes, *kernel.shape[last + 1 :])
    # Weights do not grow with rows, and scores grow with the square of the tokens: the kind counts again.
    recounted = kernel.kind in GROUPS or kernel.is_attention
    times = 0.0 if recounted else size / kernel.shape[axis]
    return replace(
        kernel, shape=shape, bytes=kernel.bytes * times, flops=kernel.flops * times
    )


def sizes_above(size: float, steps: int) -> Iterator[int]:
    """Sizes beyond one, so many (a power of two) in every octave.

    Examples
    --------
    >>> from itertools import islice
    >>> list(islice(sizes_above(100, 8), 4))
    [104, 112, 120, 128]
    """
    whole = int(size)  # some shapes have a part of a sequence
    while whole < LARGEST:
        step = _step(whole, steps)
        whole = (whole // step + 1) * step
        yield whole


def _step(size: float, steps: int) -> int:
    """Distance of two sizes that the search looks at, around a size."""
    return max(1, (1 << max(0, int(size).bit_length() - 1)) // steps)
