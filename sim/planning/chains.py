"""How long chains take: the graph that each repeats, executed once by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.cycle import Cycle
from prestep.sim.engine.engine import execute
from prestep.sim.engine.execution import Timed
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL, Chain
from prestep.sim.planning.cycles import cycle_of


@dataclass(frozen=True, eq=False)
class Repetition:
    """One repetition of a chain's graph beside nothing else.

    Attributes
    ----------
    timed : Timed
        The graph with its own durations and plans.
    period : float
        Seconds from one repetition's end to the next one's.
    last : float
        Seconds of its last kernel.
    cycle : Cycle or None
        What it moves over links, and when; None: nothing.
    """

    timed: Timed
    period: float
    last: float
    cycle: Cycle | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """How the chain's own communications go."""
        return self.timed.plans

    @property
    def kernels(self) -> list[tuple[int, float]]:
        """(index into the chain's own kernels, seconds) of every kernel in one repetition."""
        program = self.timed.graph.programs[0]
        played = program.payload[program.kind == KERNEL]
        return list(
            zip(played.tolist(), self.timed.durations[played].tolist(), strict=True)
        )

    @property
    def waiting(self) -> float:
        """Share of its time in which computation waits for its own exchanges."""
        if self.cycle is None:
            return 0.0
        return min(1.0, sum(self.cycle.exposed.values()) / self.period)

    @property
    def grain(self) -> float:
        """Seconds until the kernel that runs at a random moment of a chain ends: long ones are met more often."""
        times = np.array([time for _, time in self.kernels])
        return float((times**2).sum() / (2 * times.sum())) if times.sum() > 0 else 0.0

    def duration(self, chain: Chain) -> float:
        """Seconds of one of a chain's two kernels."""
        return (
            self.last if chain.tail else max(0.0, chain.times * self.period - self.last)
        )

    def slowdown(self, channels: int) -> float:
        """Factor on a chain beside communication: its kernels by their time; what it communicates stays."""
        total, longer = 0.0, 0.0
        factors: dict[int, float] = {}
        for index, time in self.kernels:
            if index not in factors:
                factors[index] = self.timed.slowdown(index, channels)
            total += time
            longer += time * (factors[index] - 1.0)
        period = max(self.period, total)
        return 1.0 + longer / period if period > 0 else 1.0

    def constituents(self) -> Iterator[tuple[Kernel | Chain, float]]:
        """(kernel, share of the chain's time); the rest is communication and gaps."""
        for index, time in self.kernels:
            yield self.timed.graph.kernels[index], time / (self.period or 1.0)


def repetition(timed: Timed) -> Repetition:
    """Executes a chain's graph twice: the second time has what the first one leaves behind."""
    program = timed.graph.programs[0]
    if not len(program):
        return Repetition(timed, 0.0, 0.0)
    run = execute(timed, 2)
    first, second = (float(run.end[0][step].max()) for step in (0, 1))
    kernels = np.flatnonzero(program.kind == KERNEL)
    at = kernels[-1] if len(kernels) else -1
    last = float(run.end[0][1][at] - run.start[0][1][at])
    return Repetition(
        timed, second - first, min(last, second - first), cycle_of(timed, run)
    )
