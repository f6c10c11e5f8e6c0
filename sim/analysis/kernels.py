"""Kernels of the last step by kind and shape: how often, how long, and how near to what the GPU can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.costs.kinds import work
from sim.engine.execution import Run
from sim.graph.kernel import Kernel
from sim.graph.opgraph import KERNEL, Chain
from sim.planning.planned import Planned


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


def kernel_uses(planned: Planned, run: Run) -> tuple[KernelUse, ...]:
    """The kernels of the last step, most time first."""
    graph, gpu = planned.graph, planned.gpu
    total: dict[Kernel, list[float]] = {}
    for i, p in enumerate(graph.programs):
        rows = np.flatnonzero(p.kind == KERNEL)
        seconds = (run.end[i][-1] - run.start[i][-1])[rows]
        payload, times = p.payload[rows], len(graph.represents[p.rank])
        spent = np.bincount(payload, weights=seconds, minlength=len(graph.kernels))
        often = np.bincount(payload, minlength=len(graph.kernels))
        for at in np.flatnonzero(often).tolist():
            for kernel, n, share in _parts(planned, graph.kernels[at]):
                found = total.setdefault(kernel, [0.0, 0.0])
                found[0] += n * float(often[at]) * times
                found[1] += share * float(spent[at]) * times
    uses = [
        KernelUse(
            kernel,
            n,
            time,
            *work(kernel),
            gpu.roofline.bound(kernel),
            gpu.evidence(kernel),
        )
        for kernel, (n, time) in total.items()
        if time > 0 and kernel.kind != "spin"
    ]
    return tuple(
        sorted(uses, key=lambda use: (-use.time, use.kernel.kind, use.kernel.shape))
    )


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
