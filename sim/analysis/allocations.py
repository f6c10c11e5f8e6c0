"""What the allocator of a rank has handed out over a step, by owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prestep.sim.engine.execution import Run
from prestep.sim.graph.opgraph import KERNEL, Program
from prestep.sim.planning.planned import Planned
from prestep.workloads.memory.account import OWNERS, Memory, Row


@dataclass(frozen=True, eq=False)
class Changes:
    """Bytes by owner after each change of a rank's allocator in a step, at `time` (s of the run, sorted)."""

    time: np.ndarray
    owners: dict[str, np.ndarray]
    begin: float
    end: float


@dataclass(frozen=True, eq=False)
class Allocations:
    """The allocator's log of a simulated rank, and when the rank's operations ran.

    Attributes
    ----------
    program : Program
    memory : Memory
        What was allocated and freed, by the number of the operation that was issued next.
    compute : int
        Number of the compute stream.
    start, end : np.ndarray, shape (steps, operations)
        Seconds of the run.
    """

    program: Program
    memory: Memory
    compute: int
    start: np.ndarray
    end: np.ndarray

    def changes(self, step: int = -1) -> Changes | None:
        """Memory over a step; None where the rank issued nothing on its compute stream.

        The allocator counts what the host has asked for. It is shown where the GPU computes what was issued with it.
        """
        # What was freed after the last operation went with the symbolic model itself.
        log = [row for row in self.memory.log if row.issued < len(self.program)]
        rows = np.flatnonzero(
            (self.program.kind == KERNEL) & (self.program.stream == self.compute)
        )
        if not len(rows) or not log:
            return None
        state = np.cumsum([list(self.memory.before.values()), *_deltas(log)], axis=0)
        issued_with = np.searchsorted(rows, _operations(log))
        shown_at = np.minimum(issued_with, len(rows) - 1)
        start, end = self.start[step][rows], self.end[step][rows]
        owners = {owner: state[:, k] for k, owner in enumerate(OWNERS)}
        return Changes(start[shown_at], owners, float(start.min()), float(end.max()))


def allocations_of(planned: Planned, run: Run) -> dict[int, Allocations]:
    """By simulated rank."""
    graph, memory = planned.graph, planned.lowered.memory
    compute = graph.streams.index("compute")
    return {
        p.rank: Allocations(p, memory[p.rank], compute, run.start[i], run.end[i])
        for i, p in enumerate(graph.programs)
        if p.rank in memory
    }


def _deltas(log: Sequence[Row]) -> np.ndarray:
    """Bytes that every entry adds, (entries, owners)."""
    deltas = np.zeros((len(log), len(OWNERS)))
    owners = [OWNERS.index(entry.owner) for entry in log]
    deltas[np.arange(len(log)), owners] = [entry.size for entry in log]
    return deltas


def _operations(log: Sequence[Row]) -> np.ndarray:
    """The operation that each entry was issued with, (1 + entries,): before the first entry, operation 0.

    Operations that were taken back (recomputation ends early) leave numbers that come again.
    """
    numbers = np.array([0, *(entry.issued for entry in log)])
    return np.minimum.accumulate(numbers[::-1])[::-1]
