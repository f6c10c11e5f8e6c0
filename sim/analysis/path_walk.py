"""Finds the critical path of a run: walks back from the end of a step, through all ranks.

At every operation the walk asks what let it start last: the operation before it on its stream, one it depends on,
its launch by the host, or, for a communication, the rank that arrived last; and goes on there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from prestep.sim.analysis.critical_path import (
    HOST,
    WAITING,
    CriticalPath,
    Segment,
    family_of,
)
from prestep.sim.analysis.timeline import group_text
from prestep.sim.engine.engine import Run
from prestep.sim.errors import PrestepError
from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC, Chain, OpGraph, Program

if TYPE_CHECKING:
    from prestep.sim.analysis.chain_kernels import Chains

# Times that differ by less are the same moment, s: rounding of sums of microseconds.
SAME = 1e-10
Family = Callable[[int, int], str]


def critical_path(
    graph: OpGraph,
    run: Run,
    begin: float,
    end: float,
    family: Family | None = None,
    chains: Chains | None = None,
) -> CriticalPath:
    """The path from `begin` to `end`, in seconds of the run: what the operation that ends then waited for.

    `family` (program, operation) -> kernel family; default: by the kernel's kind. `chains`: the run's, which the path
    can then open.
    """
    return replace(_Walk(graph, run, family).path(begin, end), chains=chains)


class _Place(NamedTuple):
    """Where the walk stands: at an operation on its GPU, or at the launch of it by the host.

    `program` is the index of a simulated rank's program, `op` that of the operation over all steps.
    """

    program: int
    op: int
    launch: bool = False


class _Transfer(NamedTuple):
    """A rendezvous of a communication: when it was done, and when (and where) the last rank that starts it came."""

    done: float
    begun: float
    program: int
    op: int
    comm: int


# Where to go on (None: the walk is at the begin of the run), and what the walk passed, the last first.
_Passed = tuple[_Place | None, list[Segment]]


class _Walk:
    """A run with the indices that the walk looks things up in."""

    def __init__(self, graph: OpGraph, run: Run, family: Family | None) -> None:
        self.graph, self.run = graph, run
        self.named = family
        # By program: lists, whose single items are quicker than an array's.
        self.launch = [times.ravel().tolist() for times in run.launch]
        self.start = [times.ravel().tolist() for times in run.start]
        self.end = [times.ravel().tolist() for times in run.end]
        self.kinds = [p.kind.tolist() for p in graph.programs]
        self.payloads = [p.payload.tolist() for p in graph.programs]
        self.sizes = list(map(len, graph.programs))
        self.previous = [_previous(p) for p in graph.programs]
        self.members = _members(graph)
        self.by_end: dict[int, list[int]] = {}  # operations in order of their ends

    def path(self, begin: float, end: float) -> CriticalPath:
        """The path between two moments: its first segment is cut off where it began earlier."""
        back: list[Segment] = []
        for segment in self._back(end):
            if segment.end > begin and segment.end > segment.start:
                back.append(segment)
            if segment.start <= begin:
                break
        if back and back[-1].start < begin:
            back[-1] = replace(back[-1], start=begin)
        first = back[-1].start if back else end
        return CriticalPath(tuple(reversed(back)), first, end)

    def _back(self, end: float) -> Iterator[Segment]:
        """Segments from `end` back to the begin of the run."""
        place: _Place | None = self._last(end)
        now = end
        while place is not None:
            place, passed = self._pass(place, now)
            for segment in passed:
                yield segment
                now = min(now, segment.start)

    def _last(self, end: float) -> _Place:
        """The operation that ends last, of those that end by `end`."""
        ends = [np.where(t <= end + SAME, t, -1.0).ravel() for t in self.run.end]
        program = max(range(len(ends)), key=lambda k: float(ends[k].max()))
        return _Place(program, int(ends[program].argmax()))

    def _pass(self, place: _Place, now: float) -> _Passed:
        """What was going on at a place until `now`, and what let it begin."""
        _, i = self._operation(place)
        if place.launch:
            return self._host(place, now)
        kind = self.kinds[place.program][i]
        if kind == SYNC:
            return self._sync(place, now)
        if kind == KERNEL:
            begun_at, segments = place, list(self._kernel(place, now))
        else:
            begun_at, segment = self._communication(place, now)
            segments = [segment]
        cause, pause = self._cause(begun_at, segments[-1].start)
        return cause, [*segments, pause]

    def _operation(self, place: _Place) -> tuple[Program, int]:
        """The program of a place, and its operation within a step."""
        p = self.graph.programs[place.program]
        return p, place.op % self.sizes[place.program]

    def _kernel(self, place: _Place, now: float) -> Iterator[Segment]:
        """A kernel until `now`; of a row of layers, behind it, what they waited for their own exchanges."""
        r, op, _ = place
        p, i = self._operation(place)
        begun, ends = min(self.start[r][op], now), self.end[r][op]
        for axis, seconds in self.run.exposed[r].get(op, {}).items():
            ends -= seconds
            start = max(begun, min(ends, now))
            about = self._exchanged(r, i, axis)
            yield Segment(
                p.rank, "communication", p.names[i], start, now, *about, index=i
            )
            now = start
        yield Segment(
            p.rank, "kernel", p.names[i], begun, now, self.family(r, i), index=i
        )

    def _exchanged(self, r: int, i: int, axis: str) -> tuple[str, str, str]:
        """Operation, axis and group of what a row of layers exchanges along an axis."""
        p = self.graph.programs[r]
        chain = self.graph.kernels[int(p.payload[i])]
        if not isinstance(chain, Chain):
            raise PrestepError(f"{p.names[i]}: expected a row of layers")
        comm, _ = chain.exchanged(axis)
        group = group_text(self.graph.met(p.rank, comm)[0])
        return "exchanges in layers", axis, group

    def _communication(self, place: _Place, now: float) -> tuple[_Place, Segment]:
        """The transfer that an operation waited for, back to the rank that came to it last."""
        r, op, _ = place
        p, i = self._operation(place)
        transfers = [self._transfer(c, place) for c in p.parts[int(p.payload[i])]]
        last = max(transfers)
        begun, begun_at = last.begun, _Place(last.program, last.op)
        own = self.start[r][op]
        # A send that waits for nobody may be over when its receiver comes.
        if begun > now or last.done < own - SAME:
            begun, begun_at = min(own, now), place
        comm = self.graph.comms[last.comm]
        about = comm.op, comm.axis, group_text(comm.groups[0])
        name = p.names[i]
        return begun_at, Segment(
            p.rank, "communication", name, begun, now, *about, index=i
        )

    def _transfer(self, c: int, place: _Place) -> _Transfer:
        """The rendezvous `c` in the step of an operation that takes part in it."""
        members = self._members_of(c, place)
        sender = self.graph.comms[c].sender
        starters = [
            (k, op) for k, op in members if sender in (-1, self.graph.programs[k].rank)
        ]
        begun, k, op = max(
            ((self.start[k][op], k, op) for k, op in starters or members),
            key=itemgetter(0),
        )
        ends = [self.end[k][op] for k, op in members]
        done = min(ends)
        if self.run.plans[c].buffered:
            # A sender whose last bytes lie in its buffers is done before its receiver.
            done = min(max(ends), self.end[place.program][place.op])
        return _Transfer(done, begun, k, op, c)

    def _members_of(self, c: int, place: _Place) -> list[tuple[int, int]]:
        """(program, operation) of all that take part in a rendezvous in the step of `place`."""
        step = place.op // self.sizes[place.program]
        return [(k, i + step * self.sizes[k]) for k, i in self.members[c]]

    def _cause(self, place: _Place, begun: float) -> tuple[_Place, Segment]:
        """What let an operation of the GPU start: its launch, or whatever ended last before it."""
        r, op, _ = place
        p, i = self._operation(place)
        ended, cause = self._awaited(place, begun)
        launched = self.launch[r][op]
        free, arrived = ended + _at(p.gap, i), launched + _at(p.latency, i)
        holder = self._holder(place, begun, max(free, arrived))
        if holder >= 0:
            return _Place(r, holder), _pause(p, "gap", begun, begun)
        late = p.latency is None and launched > ended
        if cause < 0 or arrived > free - SAME or late:
            return _Place(r, op, launch=True), _pause(p, "launch", launched, begun)
        return _Place(r, cause), _pause(p, "gap", ended, begun)

    def _awaited(self, place: _Place, begun: float) -> tuple[float, int]:
        """(end, operation) of the last that an operation had to wait for on its own GPU; (-1.0, -1): of none."""
        r, op, _ = place
        p, i = self._operation(place)
        base, previous = op - i, self.previous[r][i]
        before = [base + d for d in p.deps[i]]
        last = base if previous < i else base - self.sizes[r]
        before.append(last + previous)
        ends, latest = self.end[r], begun + SAME
        found = [(ends[d], d) for d in before if d >= 0 and ends[d] <= latest]
        return max(found, default=(-1.0, -1))

    def _holder(self, place: _Place, begun: float, earliest: float) -> int:
        """The operation that held the SMs until then, of a communication that could begin earlier; -1: none."""
        _, i = self._operation(place)
        if self.kinds[place.program][i] != COMM or earliest >= begun - SAME:
            return -1
        return self._ended_at(place.program, begun)

    def _ended_at(self, r: int, time: float) -> int:
        """An operation of the GPU that ended at a moment; -1: none."""
        start, end, kinds = self.start[r], self.end[r], self.kinds[r]
        order = self.by_end.get(r)
        if order is None:
            order = self.by_end[r] = np.argsort(self.run.end[r].ravel()).tolist()
        first = bisect_left(order, time - SAME, key=end.__getitem__)
        last = bisect_right(order, time + SAME, key=end.__getitem__)
        return min(
            (
                op
                for op in order[first:last]
                if kinds[op % len(kinds)] != SYNC and start[op] < time - SAME
            ),
            default=-1,
        )

    def family(self, r: int, i: int) -> str:
        """Family of a modelled kernel, by its kind."""
        if self.named is not None:
            return self.named(r, i)
        return family_of(self.graph.kernels[self.payloads[r][i]].kind)

    def _sync(self, place: _Place, now: float) -> _Passed:
        """A wait of the host ended with the last thing it waited for, or found all done."""
        r, op, _ = place
        p, i = self._operation(place)
        awaited = [op - i + d for d in p.deps[i] if op - i + d >= 0]
        ends = [(self.end[r][d], d) for d in awaited]
        ended, last = max(ends, default=(-1.0, -1))
        launched = self.launch[r][op]
        waited = ended > launched
        begun = min(ended if waited else launched, now)
        cause = _Place(r, last) if waited else _Place(r, op, launch=True)
        return cause, [Segment(p.rank, HOST, p.names[i], begun, now, "host")]

    def _host(self, place: _Place, now: float) -> _Passed:
        """The host's work before a launch, and what it came from."""
        r, op, _ = place
        p, i = self._operation(place)
        begun = min(self.launch[r][op] - float(p.host[i]), now)
        segment = Segment(p.rank, HOST, p.names[i], begun, now, "host")
        return self._before_launch(place, begun), [segment]

    def _before_launch(self, place: _Place, begun: float) -> _Place | None:
        """What let the host begin: an operation that left the full launch queue, or what the host did before."""
        r, op, _ = place
        p = self.graph.programs[r]
        queued = op - self.graph.launch_limit
        if queued >= 0 and abs(self.end[r][queued] - begun) <= SAME:
            return _Place(r, queued)
        if op == 0:
            return None
        after_wait = bool(p.kind[(op - 1) % len(p)] == SYNC)
        return _Place(r, op - 1, launch=not after_wait)


def _at(seconds: np.ndarray | None, i: int) -> float:
    """Of an operation; none where the program says none."""
    return 0.0 if seconds is None else float(seconds[i])


def _pause(p: Program, name: str, start: float, end: float) -> Segment:
    """A pause of the GPU before an operation that began at `end`."""
    return Segment(p.rank, WAITING, name, min(start, end), end, name)


def _members(graph: OpGraph) -> dict[int, list[tuple[int, int]]]:
    """(program, operation) of all that take part in each rendezvous."""
    members: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for r, p in enumerate(graph.programs):
        for i in np.flatnonzero(p.kind == COMM).tolist():
            for c in p.parts[int(p.payload[i])]:
                members[c].append((r, i))
    return members


def _previous(p: Program) -> list[int]:
    """The operation before each on its stream; of the first, the last of the step before."""
    on_gpu = np.flatnonzero(p.kind != SYNC).tolist()
    last = {int(p.stream[i]): i for i in on_gpu}
    previous = [-1] * len(p)
    for i in on_gpu:
        stream = int(p.stream[i])
        previous[i] = last[stream]
        last[stream] = i
    return previous
