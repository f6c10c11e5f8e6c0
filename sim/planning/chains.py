"""How long chains take: each distinct one is executed once, by itself, on the same machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.graph.opgraph import KERNEL, Chain, OpGraph

if TYPE_CHECKING:
    from sim.collectives.plan import Plan
    from sim.engine.engine import Machine, Run
    from sim.graph.kernel import Kernel


class Times(NamedTuple):
    """Seconds from one repetition's end to the next one's, and of the last kernel."""

    period: float
    last: float
    run: Run | None


class Chains:
    """Times of chains, by the graph they repeat.

    Parameters
    ----------
    machine : callable
        OpGraph -> Machine for a chain's own graph.
    """

    def __init__(self, machine: Callable[[OpGraph], Machine]) -> None:
        self.machine = machine
        self._known: dict[OpGraph, Times] = {}
        self._machines: dict[OpGraph, Machine] = {}

    def times(self, graph: OpGraph) -> Times:
        if graph not in self._known:
            self._known[graph] = self._execute(graph)
        return self._known[graph]

    def _execute(self, graph: OpGraph) -> Times:
        from sim.engine.engine import execute

        if not len(graph.programs[0]):
            return Times(0.0, 0.0, None)
        run = execute(graph, self._machine(graph), 2)
        first, second = (float(run.end[0][step].max()) for step in (0, 1))
        kernels = np.flatnonzero(graph.programs[0].kind == KERNEL)
        at = kernels[-1] if len(kernels) else -1
        last = float(run.end[0][1][at] - run.start[0][1][at])
        return Times(second - first, min(last, second - first), run)

    def _machine(self, graph: OpGraph) -> Machine:
        if graph not in self._machines:
            self._machines[graph] = self.machine(graph)
        return self._machines[graph]

    def duration(self, chain: Chain) -> float:
        """Seconds of one of a chain's two kernels."""
        period, last, _ = self.times(chain.graph)
        return last if chain.tail else max(0.0, chain.times * period - last)

    def grain(self, chain: Chain) -> float:
        """Seconds until the kernel that runs at a random moment of a chain ends: long ones are met more often."""
        times = np.array([time for _, time in self.kernels(chain)])
        return float((times**2).sum() / (2 * times.sum())) if times.sum() > 0 else 0.0

    def slowdown(self, chain: Chain, channels: int) -> float:
        """Factor on a chain beside communication: its kernels by their time; what it communicates stays."""
        machine, total, longer = self._machine(chain.graph), 0.0, 0.0
        for index, time in self.kernels(chain):
            total += time
            longer += time * (machine.slowdown(index, channels) - 1.0)
        period = max(self.times(chain.graph).period, total)
        return 1.0 + longer / period if period > 0 else 1.0

    def kernels(self, chain: Chain) -> Iterator[tuple[int, float]]:
        """(index into the chain's own kernels, seconds) of every kernel in one repetition."""
        machine, p = self._machine(chain.graph), chain.graph.programs[0]
        for k in p.payload[p.kind == KERNEL].tolist():
            yield k, float(machine.duration[k])

    def constituents(self, chain: Chain) -> Iterator[tuple[Kernel | Chain, float]]:
        """(kernel, share of the chain's time); the rest is communication and gaps."""
        period = self.times(chain.graph).period or 1.0
        for k, time in self.kernels(chain):
            yield chain.graph.kernels[k], time / period

    def plans(self, chain: Chain) -> tuple[Plan, ...]:
        """How the chain's own communications go."""
        run = self.times(chain.graph).run
        return () if run is None else run.plans
