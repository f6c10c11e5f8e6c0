"""Times of kernels that nobody measured on a GPU, by a similar GPU on which somebody did.

A lent time is a guess as long as nobody looked. Where steps of the GPU were measured, and no constant was fitted to
them, their errors say how far its kernels can be off (`prestep.sim.costs.gpu_files.borne_out`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from prestep.sim.costs import gemm
from prestep.sim.costs.estimators import Basis, Estimator, lent_octaves, tiles
from prestep.sim.costs.kinds import OVER_PCIE, STREAM_PASSES, work
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import GROUPS, PREFIX, Kernel

if TYPE_CHECKING:
    from prestep.sim.costs.gpu import Gpu


#: Streams by index or over PCIe, of which HBM's bandwidth says little. Nor does it of norms: torch.compile's take 17 %
#: longer on GB200 and GB300 than it says (NVIDIA cudnn-frontend, `benchmark/norms`).
NO_STREAMS = (*OVER_PCIE, "index_add", "scatter_add")
#: Bytes of the smallest stream that was measured on both; below it kernels start and end rather than stream.
STREAMS_FROM = 2.0**26


class Sibling(Estimator):
    """A kernel that takes what it does on the GPU that this one is like, scaled by ratios of the two.

    The time beyond the shortest time of any kernel is longer or shorter as somebody measured of both GPUs; else as
    their limits differ for the kernel. A product is longer or shorter as its tiles and bytes are: the ratio of bounds
    falls where arithmetic takes over from memory, and a product of more rows would take less time.
    """

    name = "sibling GPU"
    covers = "kernels without a table or tiles of the GPU's own, if its file says which GPU it is like"

    def answers(self, kernel: Kernel) -> bool:
        gpu, like = self.gpu, self._like
        # How well libraries group products on one architecture says nothing of another.
        other = like.facts.capability != gpu.facts.capability
        measured = kernel.kind in GROUPS and like.surface(kernel) is not None
        return not (tiles.has_own(gpu, kernel) or (other and measured))

    def seconds(self, kernel: Kernel) -> float:
        gpu, like = self.gpu, self._like
        if gemm.is_tiled(kernel):
            ratio = tiles.aligned(gpu, kernel) / tiles.aligned(like, kernel)
            return ratio * like.alone(kernel)
        beyond = max(0.0, like.lent(kernel) - like.floor)
        measured = measured_ratio(gpu, like, kernel) or self._streams(kernel)
        return gpu.floor + (measured or least_over(gpu, like, kernel)) * beyond

    def basis(self, kernel: Kernel) -> Basis:
        gpu, like = self.gpu, self._like
        ratio = measured_ratio(gpu, like, kernel)
        borne_out = (kernel.kind, kernel.dtype) in gpu.facts.borne_out
        grade = "fitted" if borne_out or ratio else "guess"
        how = "" if ratio is None else ", by an operation measured on both"
        if ratio is None and self._streams(kernel):
            # No better than what it follows: of some streams the lender has the datasheet's bandwidth alone.
            lent = like.basis(kernel).grade
            grade = "fitted" if lent == "measured" else lent
            how = ", by streams measured on both"
        past, source = lent_octaves(like, kernel), self._source(kernel)
        return Basis(grade, f"the {like.name}'s table{how}", past, source)

    def _streams(self, kernel: Kernel) -> float | None:
        """The ratio of a kernel that streams memory, by streams; None for others, and where not both were measured."""
        here, there = self.gpu.facts.stream, self._like.facts.stream
        kind, norm = kernel.kind, "norm" in kernel.kind
        if kind not in STREAM_PASSES or kind in NO_STREAMS or norm:
            return None
        if work(kernel)[1] < STREAMS_FROM:
            return None
        return None if here is None or there is None else there / here

    def _source(self, kernel: Kernel) -> str:
        """The library that was measured on both GPUs, or else the other GPU."""
        over = self.gpu.facts.attention_over
        if over is not None and kernel.is_attention:
            return f"library {over.source}"
        return f"borrowed from {self._like.name}"

    @property
    def _like(self) -> Gpu:
        assert self.gpu.like is not None
        return self.gpu.like


def least_over(gpu: Gpu, like: Gpu, kernel: Kernel) -> float:
    """Least time of a kernel on `gpu` over that on `like`; of data that both hold in the L2, by its speed.

    HBM counts with the measured rates of both where there are, else with the datasheet's.
    """
    here, there = gpu.roofline, like.roofline
    if gpu.facts.stream is not None and like.facts.stream is not None:
        here = replace(here, bandwidth=gpu.facts.stream)
        there = replace(there, bandwidth=like.facts.stream)
    least = there.bound(kernel)
    return here.bound(kernel) / least if least > 0 else 1.0


def lent_operations(gpu: Gpu) -> Callable[[Kernel], float] | None:
    """Seconds of operations by the rows of the GPU that this one is like, as their limits differ; None without rows."""
    has_rows = gpu.like is not None and gpu.like.aten_tables is not None
    return partial(_lent_seconds, gpu) if has_rows else None


def _lent_seconds(gpu: Gpu, kernel: Kernel) -> float:
    like = gpu.like
    assert like is not None and like.aten_tables is not None
    surface, _ = like.aten_tables.surface(kernel)
    return surface.within(kernel) * least_over(gpu, like, kernel)


def measured_ratio(gpu: Gpu, like: Gpu, kernel: Kernel) -> float | None:
    """Time of an operation on `gpu` over that on the GPU that it is like; None where not both were measured."""
    if kernel.is_attention:
        return _ratio_of_attention(gpu, like, kernel)
    if kernel.kind not in STREAM_PASSES:
        return None
    own, lent = gpu.aten_tables, like.aten_tables
    if own is None or lent is None:
        return None
    # A stream takes what PyTorch's operation of that name does, or others over as many bytes.
    flops, size = work(kernel)
    shape, kind = (math.prod(kernel.shape),), PREFIX + kernel.kind.removeprefix(PREFIX)
    operation = replace(kernel, kind=kind, shape=shape, bytes=size, flops=flops)
    here, there = (tables.surface(operation)[0] for tables in (own, lent))
    return here.within(operation) / there.within(operation)


def _ratio_of_attention(gpu: Gpu, like: Gpu, kernel: Kernel) -> float | None:
    """The ratio of attention by what the file of `gpu` says of it; None where it says nothing."""
    over = gpu.facts.attention_over
    if over is None:
        return None
    here = over.of(kernel) * _ancestor(gpu, over.over).lent(kernel)
    return here / like.lent(kernel)


def _ancestor(gpu: Gpu, name: str) -> Gpu:
    """The GPU of that name among those that `gpu` is like.

    Raises
    ------
    InputError
        If there is none.
    """
    found: Gpu | None = gpu.like
    while found is not None and found.name != name:
        found = found.like
    if found is None:
        where, expected = "attention_over.over", "a GPU that it is like"
        hint = f"{gpu.name} is like another one"
        raise InputError.of(gpu.name, where, f'"{name}"', expected, hint)
    return found
