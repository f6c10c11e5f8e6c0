"""Kernels of chains, for readers: a chain is simulated as two kernels, and opened only where somebody looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from prestep.sim.analysis.chain_pattern import Pattern, pattern_of
from prestep.sim.analysis.timeline import group_text
from prestep.sim.graph.opgraph import COMM, KERNEL, Chain, OpGraph
from prestep.sim.planning.chains import Repetition


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
