"""Times of kernels that nobody measured on a GPU, by a similar GPU on which somebody did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.sim.costs import gemm, tile_times
from prestep.sim.costs.counterparts import counterpart
from prestep.sim.costs.draw import Draw
from prestep.sim.costs.kinds import ATTENTIONS, STREAM_PASSES
from prestep.sim.errors import InputError, Mistake
from prestep.sim.graph.kernel import Kernel

if TYPE_CHECKING:
    from prestep.sim.costs.gpu_times import GpuTimes


def seconds(gpu: GpuTimes, like: GpuTimes, kernel: Kernel) -> float:
    """What the kernel takes on `gpu`, if it takes what it does on `like`.

    The time beyond the shortest time of any kernel is longer or shorter as somebody measured of both GPUs; else as
    their limits differ for the kernel, and as its units differ that only one of them has. A product is longer or
    shorter as its tiles and bytes are: the ratio of bounds falls where arithmetic takes over from memory, and a
    product of more rows would take less time.
    """
    if kernel.kind in gemm.KINDS:
        tiles = tile_times.aligned(gpu, kernel) / tile_times.aligned(like, kernel)
        return tiles * like.alone(kernel)
    beyond = max(0.0, like.lent(kernel) - like.floor)
    ratio = gpu.measured_ratio(like, kernel)
    if ratio is None:
        units = gpu.facts.units.get(kernel.kind, 1.0)
        ratio = least_over(gpu, like, kernel) * units
    return gpu.floor + ratio * beyond


def least_over(gpu: GpuTimes, like: GpuTimes, kernel: Kernel) -> float:
    """Least time of a kernel on `gpu` over that on `like`; of data that both hold in the L2, by its speed.

    HBM counts with the measured rates of both where there are, else with the datasheet's.
    """
    here, there = gpu.roofline, like.roofline
    if gpu.stream is not None and like.stream is not None:
        here = replace(here, bandwidth=gpu.stream)
        there = replace(there, bandwidth=like.stream)
    least = there.bound(kernel)
    return here.bound(kernel) / least if least > 0 else 1.0


def draw(gpu: GpuTimes) -> Draw | None:
    """What `gpu` draws, if it draws what the GPU that it is like does at the same shares of its limits."""
    like = gpu.like
    if like is None or like.draw is None or not gpu.power_limit or not like.power_limit:
        return None
    here, there = gpu.roofline, like.roofline
    peak = {
        dtype: rate / there.peak[dtype]
        for dtype, rate in here.peak.items()
        if dtype in there.peak
    }
    limit = gpu.power_limit / like.power_limit
    scaled = like.draw.scaled(limit, peak, here.bandwidth / there.bandwidth)
    return scaled.with_formats(gpu.peak)


def measured_ratio(gpu: GpuTimes, like: GpuTimes, kernel: Kernel) -> float | None:
    """Time of an operation on `gpu` over that on `like`; None where not both were measured."""
    if kernel.kind in ATTENTIONS:
        return _ratio_of_attention(gpu, like, kernel)
    operation = counterpart(kernel)
    if operation is None or gpu.aten_tables is None or like.aten_tables is None:
        return None
    here, measured_here = gpu.aten_tables.surface(operation)
    there, measured_there = like.aten_tables.surface(operation)
    both_measured = measured_here and measured_there
    if not both_measured and kernel.kind not in STREAM_PASSES:
        return None
    return here.seconds(operation) / there.seconds(operation)


def variant(gpu: GpuTimes, operation: Kernel, plain: Kernel) -> float:
    """Time of an operation over that of a plainer one, as measured on a GPU that this one is like; else their work."""
    measured: GpuTimes | None = gpu
    while measured is not None and measured.aten_tables is None:
        measured = measured.like
    if measured is not None:
        return measured.duration(operation) / measured.duration(plain)
    return gpu.roofline.bound(operation) / gpu.roofline.bound(plain)


def _ratio_of_attention(gpu: GpuTimes, like: GpuTimes, kernel: Kernel) -> float | None:
    """The ratio of attention, by what the file of `gpu` says of it; else by a library that was measured on both."""
    if (over := gpu.facts.attention_over) is not None:
        measured = _ancestor(gpu, over.over)
        here = over.of(kernel) * measured.lent(kernel)
        return here / like.lent(kernel)
    return _ratio_by_library(gpu, like, kernel)


def _ratio_by_library(gpu: GpuTimes, like: GpuTimes, kernel: Kernel) -> float | None:
    """The ratio of a library's forward passes; None where its table lacks one of the GPUs.

    A backward pass saves a share of what units save that only `gpu` has; `units` of its file says both shares.
    """
    here, there = gpu.libraries, like.libraries
    if here.stack(kernel) is None or there.stack(kernel) is None:
        return None
    forward = here.forward(kernel) / there.forward(kernel)
    units = gpu.facts.units
    if kernel.kind == "attention_fwd" or kernel.kind not in units:
        return forward
    by_limits = least_over(gpu, like, kernel)
    saved_forward = 1.0 - units["attention_fwd"]
    saved_backward = 1.0 - units["attention_bwd"]
    part = saved_backward / saved_forward
    return by_limits * (1.0 - part * (1.0 - forward / by_limits))


def _ancestor(gpu: GpuTimes, name: str) -> GpuTimes:
    """The GPU of that name among those that `gpu` is like.

    Raises
    ------
    InputError
        If there is none.
    """
    found: GpuTimes | None = gpu.like
    while found is not None and found.name != name:
        found = found.like
    if found is None:
        where, expected = "attention_over.over", "a GPU that it is like"
        hint = f"{gpu.name} is like another one"
        raise InputError(Mistake(gpu.name, where, f'"{name}"', expected, hint))
    return found
