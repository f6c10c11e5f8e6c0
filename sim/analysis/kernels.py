"""Kernels of the last step by kind and shape: how often, how long, and how near to what the GPU can do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from prestep.sim.costs import Gpu
from prestep.sim.costs.kinds import work
from prestep.sim.engine.execution import Run
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL, Chain
from prestep.sim.planning.planned import Planned


@dataclass(frozen=True)
class KernelUse:
    """All runs of one kernel in the last step, all ranks together.

    Attributes
    ----------
    kernel : Kernel
    count : float
    time : float
        Seconds, all runs together.
    flops, bytes : float
        Of one run.
    bound : float
        Seconds that no run of it can undercut: the roofline.
    evidence : str
    """

    kernel: Kernel
    count: float
    time: float
    flops: float
    bytes: float
    bound: float
    evidence: str

    @property
    def speed(self) -> float:
        """Flop/s reached."""
        return self.flops * self.count / self.time

    @property
    def rate(self) -> float:
        """Bytes/s moved."""
        return self.bytes * self.count / self.time


def kernel_uses(
    planned: Planned, run: Run, programs: Iterable[int] | None = None
) -> tuple[KernelUse, ...]:
    """The kernels of the last step, most time first; of some simulated ranks, or of all."""
    total: dict[Kernel, list[float]] = {}
    for rank in range(len(planned.graph.programs)) if programs is None else programs:
        for kernel, count, seconds in _of_rank(planned, run, rank):
            sums = total.setdefault(kernel, [0.0, 0.0])
            sums[0] += count
            sums[1] += seconds
    uses = [
        _use(planned.gpu, kernel, count, time)
        for kernel, (count, time) in total.items()
        if time > 0 and kernel.kind != "spin"
    ]
    return tuple(sorted(uses, key=_order))


def _use(gpu: Gpu, kernel: Kernel, count: float, time: float) -> KernelUse:
    bound, evidence = gpu.roofline.bound(kernel), gpu.evidence(kernel)
    return KernelUse(kernel, count, time, *work(kernel), bound, evidence)


def _order(use: KernelUse) -> tuple[float, str, tuple[int, ...]]:
    return -use.time, use.kernel.kind, use.kernel.shape


def _of_rank(
    planned: Planned, run: Run, i: int
) -> Iterator[tuple[Kernel, float, float]]:
    """(kernel, count, seconds) of what a simulated rank ran, for all ranks that it stands for."""
    graph = planned.graph
    p = graph.programs[i]
    rows = np.flatnonzero(p.kind == KERNEL)
    seconds = (run.end[i][-1] - run.start[i][-1])[rows]
    kernels, ranks = p.payload[rows], len(graph.represents[p.rank])
    spent = np.bincount(kernels, weights=seconds, minlength=len(graph.kernels))
    runs = np.bincount(kernels, minlength=len(graph.kernels))
    for k in np.flatnonzero(runs).tolist():
        for kernel, times, share in _parts(planned, graph.kernels[k]):
            count = times * float(runs[k]) * ranks
            yield kernel, count, share * float(spent[k]) * ranks


def _parts(
    planned: Planned, kernel: Kernel | Chain
) -> Iterator[tuple[Kernel, float, float]]:
    """(kernel, how often, share of the time); of a chain its own kernels, as often as it repeats."""
    if not isinstance(kernel, Chain):
        yield kernel, 1.0, 1.0
        return
    for inner, share in planned.chains[kernel.graph].constituents():
        if not isinstance(inner, Chain):
            yield inner, 0.0 if kernel.tail else float(kernel.times), share
