"""One repetition of a chain's graph as readers see it: its operations on clocks, and as one lane without holes.

The chain's graph was executed by itself (`prestep.sim.planning.chains`), so when each of its operations begins and ends
is known up to how fast this one ran. That is told by clocks: seconds in which the chain computes, and for every axis
seconds in which computation waits for its exchanges. In a chain beside others each clock runs at its own speed, so
that it computes and waits as long as it did in the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from prestep.sim.engine.exchange_timeline import Cycle
from prestep.sim.engine.execution import Run
from prestep.sim.errors import PrestepError
from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC, Chain, Comm, OpGraph
from prestep.sim.planning.chains import Repetition


class Piece(NamedTuple):
    """A stretch of what a chain's GPU does: a kernel (`op`), a wait for an exchange (`op`), or a gap (-1)."""

    op: int
    begin: np.ndarray
    end: np.ndarray


@dataclass(frozen=True, eq=False)
class Pattern:
    """One repetition of a chain's graph on its clocks, arrays of shape (..., 1 + axes).

    Attributes
    ----------
    graph : OpGraph
    run : Run
        Of two repetitions.
    ops : np.ndarray, shape (n,)
        Its operations on the GPU, in the order of issue.
    begin, end : np.ndarray, shape (n, clocks)
    total : np.ndarray, shape (clocks,)
        From one repetition to the next.
    last : int
        Row of the last kernel, which is the chain's second one.
    axes : tuple of str
        Of its exchanges; clock 0 is computation, the others are theirs.
    lane : tuple of Piece
        The repetition as one stretch behind the other, without holes.
    """

    graph: OpGraph
    run: Run
    ops: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    total: np.ndarray
    last: int
    axes: tuple[str, ...]
    lane: tuple[Piece, ...]

    @property
    def cut(self) -> np.ndarray:
        """The last kernel on the clocks."""
        length: np.ndarray = self.end[self.last] - self.begin[self.last]
        return length

    def inside(self, chain: Chain) -> np.ndarray:
        """Which of the operations each repetition of a chain has in it, shape (repetitions, n)."""
        begin = self.begin[:, 0]
        # The chain's second kernel is the last one, with what begins beside it.
        second = (begin >= begin[self.last]) & ~self.behind
        second[self.last] = True
        if chain.tail:
            return np.atleast_2d(second)
        inside = np.ones((chain.times, len(self.ops)), dtype=bool)
        inside[-1] = ~second
        return inside

    @property
    def behind(self) -> np.ndarray:
        """Which of the operations begin when the last kernel has ended."""
        behind: np.ndarray = self.begin[:, 0] >= self.end[self.last, 0]
        return behind

    def comms(self, op: int) -> list[Comm]:
        """The communications that an operation takes part in."""
        p = self.graph.programs[0]
        return [self.graph.comms[part] for part in p.parts[int(p.payload[op])]]

    def speeds(
        self, chain: Chain, seconds: np.ndarray, waited: np.ndarray
    ) -> np.ndarray:
        """Seconds of the run for one of each clock's.

        Parameters
        ----------
        seconds : np.ndarray, shape (blocks,)
            Of each block of the chain, its waiting included.
        waited : np.ndarray, shape (blocks, axes)
        """
        nominal = self.cut if chain.tail else chain.times * self.total - self.cut
        real = np.column_stack([seconds - waited.sum(axis=1), waited])
        speeds: np.ndarray = np.divide(
            real, nominal, out=np.zeros_like(real), where=nominal > 0
        )
        return speeds


def pattern_of(repetition: Repetition) -> Pattern:
    """Returns the second repetition that was executed: it begins where the first one's last kernel ends."""
    graph, run = repetition.timed.graph, repetition.run
    if run is None:
        raise PrestepError("a chain that runs nothing has no kernels to show")
    p = graph.programs[0]
    ops = np.flatnonzero(p.kind != SYNC)
    kernels = np.flatnonzero(p.kind[ops] == KERNEL)
    origin = run.end[0][0][ops[kernels]].max()
    start, end = run.start[0][1][ops] - origin, run.end[0][1][ops] - origin
    period = max(repetition.period, float(end[kernels].max()))
    # What nothing waits for may lie outside the repetition: beside the next one, as another lies beside this one.
    behind = np.where(start >= period, period, np.where(end <= 0, -period, 0.0))
    clocks = _Clocks(repetition.cycle, _axes(graph, ops), period)
    pattern = Pattern(
        graph,
        run,
        ops,
        np.array([clocks.at(time, True) for time in start - behind]),
        np.array([clocks.at(time, False) for time in end - behind]),
        clocks.at(period, True),
        int(kernels[-1]),
        clocks.axes,
        (),
    )
    lane = _lane(pattern, clocks, [(int(i), start[i], end[i]) for i in kernels])
    return replace(pattern, lane=tuple(lane))


def _axes(graph: OpGraph, ops: np.ndarray) -> list[str]:
    """Of the communications among some operations of a chain's graph."""
    p = graph.programs[0]
    batches = p.payload[ops[p.kind[ops] == COMM]].tolist()
    return sorted({graph.comms[p.parts[batch][0]].axis for batch in batches})


class _Clocks:
    """Moments of a repetition on the clocks of a pattern."""

    def __init__(self, cycle: Cycle | None, axes: Sequence[str], period: float) -> None:
        self.cycle, self.axes, self.period = cycle, tuple(axes), period
        idle = {} if cycle is None else cycle.exposed
        #: Axes that hold up nothing on an idle network: a wait for them, on a busy one, is before what needs them.
        self.marks = {axis: self._needed(axis) for axis in axes if axis not in idle}

    def _needed(self, axis: str) -> list[float]:
        """When computation begins that needs an exchange of an axis; none does: the repetition's end."""
        cycle, before, needed = self.cycle, 0, list[float]()
        for piece in () if cycle is None else cycle.pieces:
            if cycle is not None and piece.awaited > before:
                exchange = cycle.exchanges[piece.awaited - 1]
                needed += [piece.begin] if exchange.comm.axis == axis else []
            before = piece.awaited
        return needed or [self.period]

    def at(self, time: float, after: bool) -> np.ndarray:
        """The clocks at a moment, before or `after` what is waited for there."""
        waited = {} if self.cycle is None else self.cycle.exposed_until(time)
        moment = [time - sum(waited.values())]
        side = 1e-12 if after else -1e-12
        for axis in self.axes:
            marks = self.marks.get(axis, ())
            moment.append(
                waited.get(axis, 0.0) + sum(mark <= time + side for mark in marks)
            )
        return np.array(moment)


def _lane(
    pattern: Pattern, clocks: _Clocks, kernels: Sequence[tuple[int, float, float]]
) -> Iterator[Piece]:
    """Kernels in the order in which they begin, and what lies between them."""
    now, clock = 0.0, np.zeros_like(pattern.total)
    behind = (-1, clocks.period, clocks.period)
    for row, start, end in (*sorted(kernels, key=lambda one: one[1]), behind):
        if end <= now and row >= 0:
            continue
        for moment, op in _between(pattern, clocks, now, start):
            yield Piece(op, clock, moment)
            clock = moment
        now = max(now, end)
        if row >= 0:
            moment = clocks.at(now, False)
            yield Piece(int(pattern.ops[row]), clock, moment)
            clock = moment


def _between(
    pattern: Pattern, clocks: _Clocks, begin: float, end: float
) -> Iterator[tuple[np.ndarray, int]]:
    """(end on the clocks, operation that is waited for; -1: none) of what lies between two kernels."""
    p, cycle = pattern.graph.programs[0], clocks.cycle
    exchanges = () if cycle is None else cycle.exchanges
    cuts = sorted({e.end for e in exchanges if begin < e.end < end} | {begin, end})
    before = clocks.at(begin, False)
    comms = [int(op) for op in pattern.ops if p.kind[op] == COMM]
    for cut in cuts:
        moment = clocks.at(cut, True)
        waited = (moment - before)[1:]
        op = -1
        if len(waited) and waited.max() > 0.5 * (moment - before)[0]:
            axis = clocks.axes[int(waited.argmax())]
            mine = [op for op in comms if pattern.comms(op)[0].axis == axis]
            rows = np.searchsorted(pattern.ops, mine)
            # The one of them that ends nearest on all clocks.
            apart = np.abs(pattern.end[rows] - moment).sum(axis=1)
            op = mine[int(apart.argmin())]
        if (moment > before).any():
            yield moment, op
        before = moment
