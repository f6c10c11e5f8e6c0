"""The peak against which a step's model flops are held: that of the number formats in which its products run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from operator import itemgetter

import numpy as np

from prestep.sim.costs.kinds import work
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL, Chain, Program
from prestep.sim.planning.planned import Planned
from prestep.workloads.precision import precision

PRODUCTS = ("gemm", "attention", "bmm")


def formats_of(planned: Planned) -> dict[str, float]:
    """Shares of the flops of a step's products by number format, the largest first.

    Products of a step that quantizes none are in its own format.
    """
    name = planned.job.precision
    if not precision(name).quantized:
        return {name: 1.0}
    flops: dict[str, float] = defaultdict(float)
    for program in planned.graph.programs:
        ranks = len(planned.graph.represents[program.rank])
        for kernel, times in _kernels(planned.graph.kernels, program):
            if any(word in kernel.kind for word in PRODUCTS):
                flops[kernel.dtype] += ranks * times * work(kernel)[0]
    whole = sum(flops.values())
    if whole <= 0:
        return {name: 1.0}
    return {
        dtype: share / whole
        for dtype, share in sorted(flops.items(), key=itemgetter(1), reverse=True)
        if share > 0
    }


def _kernels(
    kernels: tuple[Kernel | Chain, ...], program: Program
) -> Iterator[tuple[Kernel, float]]:
    """Kernels of a program and how often each runs, those within chains too."""
    played = program.payload[program.kind == KERNEL]
    for index, count in zip(*np.unique(played, return_counts=True), strict=True):
        kernel = kernels[int(index)]
        if not isinstance(kernel, Chain):
            yield kernel, float(count)
        elif not kernel.tail:
            for inner, times in _kernels(
                kernel.graph.kernels, kernel.graph.programs[0]
            ):
                yield inner, times * float(count) * kernel.times


def peak_of(planned: Planned, formats: Mapping[str, float]) -> float:
    """Flop/s of a GPU that runs its products in these shares of formats at their peaks; nan where one is not known."""
    peaks = planned.gpu.peak
    seconds = sum(
        share / peaks.get(name, float("nan")) for name, share in formats.items()
    )
    return 1.0 / seconds


def words(formats: Mapping[str, float]) -> str:
    """The formats with their shares: `fp8 92 %, bf16 8 %`; one alone without."""
    if len(formats) == 1:
        return next(iter(formats))
    return ", ".join(f"{name} {share:.0%}" for name, share in formats.items())
