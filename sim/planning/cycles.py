"""The cycle of a chain, read off two executions of its graph: what begins when, and what waits for what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from prestep.sim.engine.cycle import Cycle, Exchange, Piece
from prestep.sim.engine.execution import Run, Timed
from prestep.sim.graph.opgraph import COMM, KERNEL, Program


def cycle_of(timed: Timed, run: Run) -> Cycle | None:
    """The second repetition of a chain's graph that was executed twice; None where it moves nothing over links."""
    program = timed.graph.programs[0]
    if not (program.kind == COMM).any():
        return None
    reading = _Reading(timed, run)
    exchanges = reading.exchanges()
    if not any(len(exchange.plan.links) for exchange in exchanges):
        return None
    return Cycle(tuple(reading.pieces()), tuple(exchanges), reading.period)


class _Reading:
    """A repetition that was executed, with its kernels and communications in the order in which they began."""

    def __init__(self, timed: Timed, run: Run) -> None:
        self.timed, self.program = timed, timed.graph.programs[0]
        origin = self._begin(run)
        self.period = float(run.end[0][1].max() - run.end[0][0].max())
        self.start = run.start[0][1] - origin
        self.end = run.end[0][1] - origin
        self.bounds = _bounds(run)
        self.kernels = _in_order(self.program, KERNEL, self.start)
        self.comms = _in_order(self.program, COMM, self.start)
        self.place, self.number = _places(self.kernels), _places(self.comms)
        # Communications that each kernel waits for, or a kernel before it: how many of them in their order.
        self.awaited = _rising(self._awaited(op) for op in self.kernels)
        self.after = _rising(self._after(op) for op in self.comms)

    def _begin(self, run: Run) -> float:
        """When the first repetition's last kernel ended, or its last exchange where it has no kernel."""
        computes = self.program.kind == KERNEL
        ends = run.end[0][0][computes if computes.any() else slice(None)]
        return float(ends.max())

    def _awaited(self, op: int) -> int:
        deps = self.program.deps[op]
        return max((self.number[d] + 1 for d in deps if d in self.number), default=0)

    def _after(self, op: int) -> int:
        deps = self.program.deps[op]
        return max((self.place[d] + 1 for d in deps if d in self.place), default=0)

    @property
    def _marks(self) -> list[int]:
        """Kernels before which a piece begins, ascending, and their number."""
        begins = {0, *self.after}
        before = 0
        for at, awaited in enumerate(self.awaited):
            if awaited > before:
                begins.add(at)
            before = awaited
        return sorted({*begins, len(self.kernels)})

    def pieces(self) -> Iterator[Piece]:
        """Computation between marks; its seconds do not count those in which it waits."""
        now, marks = 0.0, self._marks
        for first, last in pairwise(marks):
            ended = self._ended(self.awaited[first])
            begin, length = max(now, ended), 0.0
            for at in range(first, last):
                end = float(self.end[self.kernels[at]])
                length += max(0.0, end - max(now, ended))
                now = max(now, end)
            yield Piece(begin, begin + length, self.awaited[first])
        yield from self._rest(now)

    def _rest(self, now: float) -> Iterator[Piece]:
        """What lies between the last kernel and the repetition's end: exchanges, and pauses beside later ones."""
        ends = [self.end[op] for op in self.comms if self.end[op] <= self.period]
        begin = max(now, float(ends[-1])) if ends else now
        if self.period > begin:
            yield Piece(begin, self.period, len(ends))

    def _ended(self, exchanges: int) -> float:
        """When so many exchanges had ended."""
        return float(self.end[self.comms[exchanges - 1]]) if exchanges else 0.0

    def exchanges(self) -> list[Exchange]:
        """Every communication in its order."""
        marks, made = self._marks, list[Exchange]()
        for at, op in enumerate(self.comms):
            after = self.after[at]
            computed = float(self.end[self.kernels[after - 1]]) if after else 0.0
            free = max(computed, self._ended(at))
            made.append(self._exchange(op, marks.index(after), free))
        return made

    def _exchange(self, op: int, after: int, free: float) -> Exchange:
        """The communication of operation `op`, which could begin at `free` s."""
        (part,) = self.program.parts[int(self.program.payload[op])]
        plan, end = self.timed.plans[part], float(self.end[op])
        moves = min(end, float(self.start[op]) + plan.latency)
        rate = plan.size / (end - moves) if end > moves else plan.rate_cap
        idle = replace(plan, rate_cap=rate, buffered=0.0)
        bound = self.bounds.get(id(plan.usage), -1)
        comm, delay = self.timed.graph.comms[part], max(0.0, moves - free)
        return Exchange(idle, comm, after, delay, moves, end, bound)


def _places(ops: Sequence[int]) -> dict[int, int]:
    """Where each operation stands among others of its kind."""
    return {op: at for at, op in enumerate(ops)}


def _in_order(program: Program, kind: int, start: np.ndarray) -> list[int]:
    """Operations of a kind in the order in which they began."""
    ops = np.flatnonzero(program.kind == kind)
    order: list[int] = ops[np.argsort(start[ops], kind="stable")].tolist()
    return order


def _rising(numbers: Iterator[int]) -> list[int]:
    """The highest so far."""
    rising, highest = list[int](), 0
    for number in numbers:
        highest = max(highest, number)
        rising.append(highest)
    return rising


def _bounds(run: Run) -> dict[int, int]:
    """The link that held transfers of each shape back last; -1: none."""
    traffic = run.traffic
    rows, _, _ = traffic.segments()
    plans = [traffic.plans[a] for a in traffic.activity[rows].tolist()]
    bounds = traffic.bound[rows].tolist()
    return {id(plan.usage): bound for plan, bound in zip(plans, bounds, strict=True)}
