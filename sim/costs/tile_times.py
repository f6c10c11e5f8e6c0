"""Products by the tile model: with which constants, at which limits, and in which format."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.sim.costs import gemm
from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import Kernel

if TYPE_CHECKING:
    from prestep.sim.costs.gpu_times import GpuTimes


def seconds(gpu: GpuTimes, kernel: Kernel) -> float:
    """Seconds of a product by the tile model alone, without what rows near it say."""
    return aligned(gpu, kernel) * odd_rows(gpu, kernel)


def odd_rows(gpu: GpuTimes, kernel: Kernel) -> float:
    """Time of a product over that with rows of operands at multiples of 16 bytes."""
    _, shape = gemm.products(kernel)
    odd = gemm.unaligned(shape, kernel.layout, kernel.dtype)
    return gpu.unaligned if odd else 1.0


def aligned(gpu: GpuTimes, kernel: Kernel) -> float:
    """Seconds of a product by the tile model, as if rows of its operands lay at multiples of 16 bytes.

    It never falls when a size grows: limits and SMs are this GPU's, constants those of the GPU that it is like where
    nobody fitted any here.
    """
    count, shape = gemm.products(kernel)
    peak, size = gpu.roofline.peak_of(kernel.dtype), work(kernel)[1]
    tiles = _constants(gpu, kernel.dtype)
    return tiles.time(shape, gpu.sms, peak, gpu.bandwidth, size, count)


def _constants(gpu: GpuTimes, dtype: str) -> gemm.TileModel:
    """Constants of products in a format: fitted here, else on the GPU that this one is like, else typical ones."""
    own = gemm.of_dtype(gpu.tiles, dtype) or gpu.tiles.get("")
    if own is not None:
        return own
    return gemm.TYPICAL if gpu.like is None else _constants(gpu.like, dtype)


def beyond_alike(gpu: GpuTimes, kernel: Kernel) -> float:
    """Seconds of a product in a format that takes a little longer than the one whose rows it is read from."""
    alike = replace(kernel, dtype=gemm.SAME[kernel.dtype])
    arithmetic = work(kernel)[0] / gpu.roofline.peak_of(kernel.dtype)
    share = gpu.facts.beyond_alike[kernel.dtype]
    return gpu.by_table(alike) + share * arithmetic
