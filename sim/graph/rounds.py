"""Rounds of a program: microbatches that a rank runs the same way one after the other, and a graph with fewer of them.

A rank in the steady phase of its pipeline issues the same operations for every microbatch (or for every few of them).
Two operations are alike if nothing but their microbatch tells them apart: the same kernel or communication on the same
stream, with the same host costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np

from prestep.sim.graph.opgraph import COMM, Comm, OpGraph, Program

# Rounds that a shortened program has at least: they settle, and then show that they repeat.
KEPT = 6
# What is left out has to be worth it.
LEAST_SAVED = 0.25
# Rounds that cover more microbatches than others by less than this factor cover about as many.
LONGER = 1.1
# Periods are looked for from these places of a program on, to so many operations that are like the one there.
NEXT = 8
PLACES = (0.3, 0.5, 0.7)
# Arrays of a program with an entry for each operation; those that may be None.
COLUMNS = ("kind", "stream", "payload", "host", "phase", "layer", "microbatch")
OPTIONAL = ("gap", "latency")


@dataclass(frozen=True)
class Round:
    """Where a rank's rounds are in its program: `count` of them from `begin` on, of `period` operations each."""

    begin: int
    period: int
    count: int
    microbatches: int

    @property
    def covered(self) -> int:
        """Microbatches of all rounds."""
        return self.count * self.microbatches

    def of(self, microbatches: int) -> Round:
        """Rounds of so many microbatches, a multiple of its own."""
        times = microbatches // self.microbatches
        return Round(self.begin, self.period * times, self.count // times, microbatches)


@dataclass(frozen=True, eq=False)
class Shortened:
    """A graph with `left_out` rounds less on every rank.

    Attributes
    ----------
    rounds : tuple of Round
        Of every program of the whole graph.
    alike : tuple of int
        The first of the communications that each one of the whole graph is like.
    comms : tuple of int
        The communications that the shortened graph has, by their numbers in the whole one.
    kept, kinds : tuple of np.ndarray
        Of every program: the operations that are left, and numbers that are equal for operations that are alike.
    """

    graph: OpGraph
    left_out: int
    rounds: tuple[Round, ...]
    alike: tuple[int, ...]
    comms: tuple[int, ...]
    kept: tuple[np.ndarray, ...]
    kinds: tuple[np.ndarray, ...]

    @property
    def fewest(self) -> tuple[int, Round]:
        """The first program of those with the fewest rounds, and these."""
        rank = min(range(len(self.rounds)), key=lambda r: self.rounds[r].count)
        return rank, self.rounds[rank]


def shortened(graph: OpGraph) -> Shortened | None:
    """The graph without most of its rounds; None where it has none, or few."""
    alike = _alike(graph.comms)
    kinds = tuple(_kinds(program, alike) for program in graph.programs)
    rounds = _rounds(graph, kinds) or ()
    left_out = _left_out(graph, rounds)
    meetings = _meetings(graph, alike) if left_out else None
    if meetings is None:
        return None
    cut = [
        _Cut(program, one, left_out)
        for program, one in zip(graph.programs, rounds, strict=True)
    ]
    comms = _paired(cut, alike, meetings)
    if comms is None:
        return None
    numbers = {comm: at for at, comm in enumerate(comms)}
    short = replace(
        graph,
        programs=tuple(one.program(alike, meetings, numbers) for one in cut),
        comms=tuple(graph.comms[c] for c in comms),
    )
    kept = tuple(np.array(one.kept) for one in cut)
    return Shortened(short, left_out, rounds, alike, tuple(comms), kept, kinds)


def _alike(comms: Sequence[Comm]) -> tuple[int, ...]:
    """Of every communication the first one that is equal to it."""
    groups: dict[int, int] = {}
    first: dict[object, int] = {}
    equal: dict[object, int] = {}
    for comm in comms:  # long tuples are compared once each
        if id(comm.groups) not in groups:
            groups[id(comm.groups)] = equal.setdefault(comm.groups, len(equal))
    return tuple(
        first.setdefault(
            (
                *(comm.op, comm.size, groups[id(comm.groups)], comm.axis),
                *(comm.arrivals, comm.in_place, comm.sender, comm.copied),
                *(comm.everywhere, comm.tokens),
            ),
            at,
        )
        for at, comm in enumerate(comms)
    )


# -- where rounds are -------------------------------------------------------------------------------
def _rounds(graph: OpGraph, kinds: Sequence[np.ndarray]) -> tuple[Round, ...] | None:
    """The rounds of every rank, all of as many microbatches."""
    rounds = []
    for program, mine in zip(graph.programs, kinds, strict=True):
        one = _longest(mine, program)
        if one is None:
            return None
        rounds.append(one)
    together = lcm(*(one.microbatches for one in rounds)) if rounds else 0
    return tuple(one.of(together) for one in rounds) or None


def _left_out(graph: OpGraph, rounds: Sequence[Round]) -> int:
    """How many rounds need not be executed; 0 where that is not worth it."""
    left_out = min((one.count for one in rounds), default=0) - KEPT
    saved = sum(left_out * one.period for one in rounds)
    return left_out if saved >= max(1, LEAST_SAVED * graph.operations) else 0


def _kinds(program: Program, alike: Sequence[int]) -> np.ndarray:
    """Numbers that are equal for operations that are alike."""
    batches = [tuple([alike[c] for c in part]) for part in program.parts]
    nothing = [0.0] * len(program)
    columns = zip(
        program.kind.tolist(),
        program.stream.tolist(),
        [
            batches[payload] if kind == COMM else payload
            for kind, payload in zip(
                program.kind.tolist(), program.payload.tolist(), strict=True
            )
        ],
        program.host.tolist(),
        nothing if program.gap is None else program.gap.tolist(),
        nothing if program.latency is None else program.latency.tolist(),
        strict=True,
    )
    numbers: dict[object, int] = {}
    kinds = [numbers.setdefault(one, len(numbers)) for one in columns]
    return np.array(kinds, dtype=np.int64)


def _longest(kinds: np.ndarray, program: Program) -> Round | None:
    """The rounds of most microbatches: of those of about as many the first, with its shortest period."""
    rounds, microbatch = [], program.microbatch
    for period in _periods(kinds, program):
        ahead = microbatch[period:] - microbatch[:-period]
        same = (kinds[period:] == kinds[:-period]) & (ahead > 0)
        for begin, length in _stretches(same, period):
            if (ahead[begin : begin + length] == ahead[begin]).all():
                count = 1 + length // period
                rounds.append(Round(begin, period, count, int(ahead[begin])))
    most = max((one.covered for one in rounds), default=0)
    long = [one for one in rounds if one.covered * LONGER >= most]
    return min(long, key=lambda one: (one.begin, one.period), default=None)


def _periods(kinds: np.ndarray, program: Program) -> list[int]:
    """How far operations of later microbatches are that are like some in the middle of a program, in the same layer."""
    n, periods = len(kinds), set()
    microbatch, layer = program.microbatch, program.layer
    for place in PLACES:
        at = int(n * place)
        ahead = slice(at + 1, at + 1 + n // 3)
        like = (kinds[ahead] == kinds[at]) & (layer[ahead] == layer[at])
        like &= microbatch[ahead] > microbatch[at]
        periods.update((np.flatnonzero(like)[:NEXT] + 1).tolist())
    return sorted(periods)


def _stretches(same: np.ndarray, least: int) -> Iterator[tuple[int, int]]:
    """Begin and length of every stretch of True that is long enough."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    for at in np.flatnonzero(lengths >= least).tolist():
        yield int(begins[at]), int(lengths[at])


# -- a program without them -------------------------------------------------------------------------
def _meetings(graph: OpGraph, alike: Sequence[int]) -> dict[int, list[int]] | None:
    """Communications that are alike, in their order; None where two ranks have them in different orders."""
    meetings: dict[int, list[int]] = {}
    for program in graph.programs:
        mine = defaultdict(list)
        for c in _communications(program, range(len(program))):
            mine[alike[c]].append(c)
        for first, order in mine.items():
            if meetings.setdefault(first, order) != order:
                return None
    return meetings


def _communications(program: Program, ops: Iterable[int]) -> list[int]:
    """The communications of some operations, in their order."""
    kind, payload = program.kind.tolist(), program.payload.tolist()
    return [c for at in ops if kind[at] == COMM for c in program.parts[payload[at]]]


def _paired(
    cut: Sequence[_Cut], alike: Sequence[int], meetings: dict[int, list[int]]
) -> list[int] | None:
    """The communications that are kept, of those alike the first ones; None where ranks keep different numbers."""
    counts: dict[int, int] = {}
    for one in cut:
        mine: dict[int, int] = dict.fromkeys(
            {alike[c] for part in one.whole.parts for c in part}, 0
        )
        for c in _communications(one.whole, one.kept):
            mine[alike[c]] += 1
        for first, count in mine.items():
            if counts.setdefault(first, count) != count:
                return None
    return sorted(c for first, n in counts.items() for c in meetings[first][:n])


class _Cut:
    """A program without so many rounds after the first one."""

    def __init__(self, whole: Program, rounds: Round, left_out: int) -> None:
        self.whole, self.period = whole, rounds.period
        self.begin, self.length = rounds.begin + self.period, left_out * self.period
        self.kept = [*range(self.begin), *range(self.begin + self.length, len(whole))]

    def program(
        self,
        alike: Sequence[int],
        meetings: dict[int, list[int]],
        numbers: dict[int, int],
    ) -> Program:
        """What is left of the program.

        Parameters
        ----------
        alike, meetings
            Of every communication the first that is like it, and of that all, in their order.
        numbers
            Of communications in the shortened graph, by those in the whole one.
        """
        whole, kept = self.whole, self.kept
        columns = {name: getattr(whole, name) for name in (*COLUMNS, *OPTIONAL)}
        cut: dict[str, Any] = {
            name: None if column is None else column[kept]
            for name, column in columns.items()
        }
        # The first of its communications of a kind is the first of all, and so on.
        orders = {first: iter(order) for first, order in meetings.items()}
        communicates = np.flatnonzero(cut["kind"] == COMM)
        parts = tuple(
            tuple([numbers[next(orders[alike[c]])] for c in whole.parts[batch]])
            for batch in cut["payload"][communicates].tolist()
        )
        cut["payload"][communicates] = np.arange(len(parts))
        deps = tuple(tuple([self._moved(d) for d in whole.deps[i]]) for i in kept)
        names = tuple([whole.names[i] for i in kept])
        return replace(whole, **cut, deps=deps, parts=parts, names=names)

    def _moved(self, dep: int) -> int:
        """Where an operation is now; of one that was left out, the one like it in the round before."""
        if dep < 0:  # of the step before, counted from its end
            return self._moved(dep + len(self.whole)) - len(self.kept)
        beyond = dep - self.begin
        if beyond < 0:
            return dep
        if beyond < self.length:
            return self.begin - self.period + beyond % self.period
        return dep - self.length
