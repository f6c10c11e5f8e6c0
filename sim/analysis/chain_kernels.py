"""Kernels of chains, for readers: a chain is simulated as two kernels, and opened only where somebody looks.

The chain's graph was executed by itself (`prestep.sim.planning.chains`), so when each of its operations begins and ends
is known up to how fast this one ran. That is told by clocks: seconds in which the chain computes, and for every axis
seconds in which computation waits for its exchanges. In a chain beside others each clock runs at its own speed, so
that it computes and waits as long as it did in the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from prestep.sim.analysis.timeline import group_text
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
    """The second of the two repetitions that were executed.

    It begins where the first one's last kernel ends.
    """
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
    moved = ops[p.kind[ops] == COMM]
    comms = [graph.comms[p.parts[batch][0]] for batch in p.payload[moved].tolist()]
    clocks = _Clocks(repetition.cycle, sorted({c.axis for c in comms}), period)
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
            op = min(mine, key=lambda one: _away(pattern, one, moment))
        if (moment > before).any():
            yield moment, op
        before = moment


def _away(pattern: Pattern, op: int, moment: np.ndarray) -> float:
    """How far an operation's end is from a moment, on all clocks."""
    row = int(np.searchsorted(pattern.ops, op))
    return float(np.abs(pattern.end[row] - moment).sum())


class Places(NamedTuple):
    """When what is in blocks of one chain ran: arrays of shape (blocks, n) of its operations `ops`."""

    ops: np.ndarray
    start: np.ndarray
    end: np.ndarray
    launch: np.ndarray


@dataclass(frozen=True, eq=False)
class Blocks:
    """One of a chain's two kernels on a rank as it ran again and again: from `start` to `end`, its waits included.

    `speeds`, of shape (blocks, clocks), has seconds of the run for one of each clock's; `launches` when the host came
    to the first of its kernels and to the one behind them; `groups` the ranks that meet in each operation that
    communicates.
    """

    pattern: Pattern
    chain: Chain
    start: np.ndarray
    end: np.ndarray
    speeds: np.ndarray
    launches: tuple[np.ndarray, np.ndarray]
    groups: Mapping[int, str]

    @cached_property
    def _ops(self) -> list[int]:
        return [piece.op for piece in self.pattern.lane]

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Each piece of a repetition on the clocks."""
        return np.array([piece.end - piece.begin for piece in self.pattern.lane])

    @cached_property
    def _last(self) -> int:
        """Piece of the last kernel."""
        return self._ops.index(int(self.pattern.ops[self.pattern.last]))

    def pieces(self, block: int) -> tuple[list[int], list[float]]:
        """(operation of each piece, -1 for a gap; when it ends), from the block's start to its end."""
        end = float(self.end[block])
        if self.chain.tail:
            return [self._ops[self._last]], [end]
        lengths = np.tile(self._lengths @ self.speeds[block], self.chain.times)
        lengths[self._last - len(self._ops)] = 0.0
        ends = np.minimum(self.start[block] + np.cumsum(lengths), end)
        return self._ops * self.chain.times, [*ends[:-1].tolist(), end]

    def sums(self, chosen: np.ndarray) -> Iterator[tuple[int, float, int]]:
        """(operation, seconds, how often) of the pieces of some blocks together."""
        speeds = self.speeds[chosen].sum(axis=0)
        for at, (op, length) in enumerate(zip(self._ops, self._lengths, strict=True)):
            last = at == self._last
            times = int(last) if self.chain.tail else self.chain.times - last
            if times and (seconds := times * float(length @ speeds)) > 0:
                yield op, seconds, times * len(chosen)

    def places(self) -> Places:
        """When every operation of every repetition ran."""
        pattern, chain = self.pattern, self.chain
        start, end = self.start[:, None], self.end[:, None]
        repetition, row = np.nonzero(pattern.inside(chain))
        origin = -repetition[:, None] * pattern.total
        if chain.tail:
            origin = pattern.begin[pattern.last]
        else:  # the last repetition is without its last kernel
            short = (repetition == chain.times - 1) & pattern.behind[row]
            origin = origin + short[:, None] * pattern.cut
        begins, ends = (
            np.clip(start + self.speeds @ (clock[row] - origin).T, start, end)
            for clock in (pattern.begin, pattern.end)
        )
        # One operation of a stream begins when the one before has ended.
        streams = chain.graph.programs[0].stream[pattern.ops][row]
        for stream in np.unique(streams).tolist():
            mine = np.flatnonzero(streams == stream)
            mine = mine[np.argsort(begins[0, mine], kind="stable")]
            ends[:, mine] = np.maximum.accumulate(ends[:, mine], axis=1)
            begins[:, mine[1:]] = np.maximum(begins[:, mine[1:]], ends[:, mine[:-1]])
        return Places(pattern.ops[row], begins, ends, self._launched(begins))

    def _launched(self, starts: np.ndarray) -> np.ndarray:
        """When the host launches each operation: evenly between the chain's two, in order, none after it starts."""
        first, behind = (launch[:, None] for launch in self.launches)
        shares = np.arange(starts.shape[1]) / starts.shape[1]
        latest = np.minimum(first + (behind - first) * shares, starts)[:, ::-1]
        launched: np.ndarray = np.minimum.accumulate(latest, axis=1)[:, ::-1]
        return launched


@dataclass(frozen=True, eq=False)
class Chains:
    """The chains of a run.

    Attributes
    ----------
    graph : OpGraph
        Whose kernels they are.
    launch, start, end, exposed
        Those of the run (`prestep.sim.engine.execution.Run`), which a prediction does not hold.
    repetitions : mapping
        By the graphs that chains repeat.
    """

    graph: OpGraph
    launch: Sequence[np.ndarray]
    start: Sequence[np.ndarray]
    end: Sequence[np.ndarray]
    exposed: Sequence[Mapping[int, Mapping[str, float]]]
    repetitions: Mapping[OpGraph, Repetition]
    _patterns: dict[OpGraph, Pattern] = field(default_factory=dict, repr=False)

    @cached_property
    def programs(self) -> dict[int, int]:
        """Index of the program of every simulated rank."""
        return {p.rank: index for index, p in enumerate(self.graph.programs)}

    def pattern(self, chain: Chain) -> Pattern:
        """How the kernels of a chain follow each other."""
        if chain.graph not in self._patterns:
            self._patterns[chain.graph] = pattern_of(self.repetitions[chain.graph])
        return self._patterns[chain.graph]

    def chain(self, rank: int, op: int) -> Chain | None:
        """The chain that an operation of a rank is; None: it is another kernel, or none."""
        p = self.graph.programs[self.programs[rank]]
        if op < 0 or p.kind[op] != KERNEL:
            return None
        kernel = self.graph.kernels[int(p.payload[op])]
        return kernel if isinstance(kernel, Chain) else None

    def size(self, rank: int, op: int) -> int:
        """Kernels and communications in an operation of a rank; 0: it is no chain."""
        chain = self.chain(rank, op)
        return 0 if chain is None else int(self.pattern(chain).inside(chain).sum())

    def steps(self, rank: int, ops: np.ndarray, times: np.ndarray) -> np.ndarray:
        """The steps in which operations of a rank ran at moments of the run."""
        starts = self.start[self.programs[rank]][:, ops]
        steps: np.ndarray = (starts <= times).sum(axis=0) - 1
        return steps

    def blocks(
        self, rank: int, steps: np.ndarray, ops: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Blocks]]:
        """Operations of a rank that are chains, in steps: which of them are each chain, and how these ran."""
        index = self.programs[rank]
        p = self.graph.programs[index]
        payloads, which = np.unique(p.payload[ops], return_inverse=True)
        for at, payload in enumerate(payloads.tolist()):
            chain, rows = self.graph.kernels[payload], np.flatnonzero(which == at)
            if isinstance(chain, Chain):
                yield rows, self._blocks(index, chain, steps[rows], ops[rows])

    def _blocks(
        self, index: int, chain: Chain, steps: np.ndarray, ops: np.ndarray
    ) -> Blocks:
        pattern = self.pattern(chain)
        start, end = self.start[index][steps, ops], self.end[index][steps, ops]
        p, exposed = self.graph.programs[index], self.exposed[index]
        waits = [exposed.get(number, {}) for number in (steps * len(p) + ops).tolist()]
        waited = np.array([[w.get(axis, 0.0) for axis in pattern.axes] for w in waits])
        speeds = pattern.speeds(chain, end - start, waited.reshape(len(ops), -1))
        # Behind a chain's first kernel is its second one.
        behind = ops + (not chain.tail)
        launch = self.launch[index]
        launches = launch[steps, ops], launch[steps, behind]
        groups = {
            op: group_text(self.graph.met(p.rank, pattern.comms(op)[0])[0])
            for op in pattern.ops.tolist()
            if chain.graph.programs[0].kind[op] == COMM
        }
        return Blocks(pattern, chain, start, end, speeds, launches, groups)
