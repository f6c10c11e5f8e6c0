"""Products by the tile model (`prestep.sim.costs.gemm`): with which constants, at which limits, and in which format."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from prestep.sim.costs import gemm
from prestep.sim.costs.estimators import LIMITS, NO_TABLE, Basis, Estimator
from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import Kernel

if TYPE_CHECKING:
    from prestep.sim.costs.gpu import Gpu


class Tiles(Estimator):
    """A product by the tile model alone."""

    name = "tile model"
    covers = "products on a GPU with a tile model of its own, or without a sibling"

    def answers(self, kernel: Kernel) -> bool:
        return gemm.is_tiled(kernel)

    def seconds(self, kernel: Kernel) -> float:
        return seconds(self.gpu, kernel)

    def basis(self, kernel: Kernel) -> Basis:
        if has_own(self.gpu, kernel) and gemm.of_dtype(self.gpu.tiles, kernel.dtype):
            return Basis("fitted")
        if self.gpu.like is None:
            grade = "datasheet" if kernel.is_product else "guess"
        else:
            borne_out = (kernel.kind, kernel.dtype) in self.gpu.facts.borne_out
            grade = "fitted" if borne_out else "guess"
        return Basis(grade, NO_TABLE, source=LIMITS)


class SlowerFormat(Estimator):
    """A product in a format that takes a little longer than the one whose rows it is read from."""

    name = "format that runs alike"
    covers = "products in a format measured over one that runs on the same units"

    def answers(self, kernel: Kernel) -> bool:
        return gemm.is_tiled(kernel) and kernel.dtype in self.gpu.facts.beyond_alike

    def seconds(self, kernel: Kernel) -> float:
        alike, gpu = self._alike(kernel), self.gpu
        arithmetic = work(kernel)[0] / gpu.roofline.peak_of(kernel.dtype)
        share = gpu.facts.beyond_alike[kernel.dtype]
        return gpu.link(alike).seconds(alike) + share * arithmetic

    def basis(self, kernel: Kernel) -> Basis:
        alike = self._alike(kernel)
        basis = self.gpu.link(alike).basis(alike)
        return basis._replace(grade="fitted") if basis.grade == "measured" else basis

    def _alike(self, kernel: Kernel) -> Kernel:
        return replace(kernel, dtype=gemm.SAME[kernel.dtype])


def has_own(gpu: Gpu, kernel: Kernel) -> bool:
    """Whether a GPU has a tile model of its own for a kernel."""
    if not gemm.is_tiled(kernel):
        return False
    own = gemm.of_dtype(gpu.tiles, kernel.dtype) if kernel.is_product else None
    return own is not None or gpu.facts.gemm is not None


def seconds(gpu: Gpu, kernel: Kernel) -> float:
    """Seconds of a product by the tile model alone, without what rows near it say."""
    return aligned(gpu, kernel) * odd_rows(gpu, kernel)


def odd_rows(gpu: Gpu, kernel: Kernel) -> float:
    """Time of a product over that with rows of operands at multiples of 16 bytes."""
    _, shape = gemm.products(kernel)
    odd = gemm.unaligned(shape, kernel.layout, kernel.dtype)
    return gpu.facts.unaligned if odd else 1.0


def aligned(gpu: Gpu, kernel: Kernel) -> float:
    """Seconds of a product by the tile model, as if rows of its operands lay at multiples of 16 bytes.

    It never falls when a size grows: limits and SMs are this GPU's, constants those of the GPU that it is like where
    nobody fitted any here.
    """
    count, shape = gemm.products(kernel)
    peak, size = gpu.roofline.peak_of(kernel.dtype), work(kernel)[1]
    tiles = _constants(gpu, kernel.dtype)
    return tiles.time(shape, gpu.sms, peak, gpu.bandwidth, size, count)


def _constants(gpu: Gpu, dtype: str) -> gemm.TileModel:
    """Constants of products in a format: fitted here, else on the GPU that this one is like, else typical ones."""
    own = gemm.of_dtype(gpu.tiles, dtype) or gpu.tiles.get("")
    if own is not None:
        return own
    return gemm.TYPICAL if gpu.like is None else _constants(gpu.like, dtype)
