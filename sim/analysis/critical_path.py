"""The critical path of a run: what the last end waited for, walked back through all ranks.

At every operation the walk asks what let it start last: the operation before it on its stream, one it depends on,
its launch by the host, or, for a communication, the rank that arrived last; and goes on there. Every moment of the
path belongs to one thing, so its shares add up to its length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.analysis.timeline import group_text
from sim.engine.engine import Run
from sim.graph.opgraph import COMM, KERNEL, SYNC, OpGraph, Program

# Times that differ by less are the same moment, s: rounding of sums of microseconds.
SAME = 1e-10
HOST, WAITING, IO = "host", "waiting", "io"
# Words in a modelled kernel's kind -> family, as replay names them; first match.
FAMILIES = (
    (("gemm", "bmm"), "gemm"),
    (("attention",), "attention"),
    (("conv",), "convolution"),
    (("norm",), "norm"),
    (("adam", "optim", "sgd", "foreach"), "optimizer"),
    (("softmax", "loss", "nll"), "softmax and loss"),
    (("embedding", "index", "gather", "scatter"), "embedding"),
    (("copy", "cat", "memset", "fill"), "copy"),
    (("sum", "pool", "sort"), "reduce"),
    (("spin",), "spin"),
    (("chain",), "chain"),
    (("",), "elementwise"),
)
LISTED = 10  # operations named in the summary
Family = Callable[[int, int], str]


@dataclass(frozen=True)
class Segment:
    """A stretch of the path, in seconds of the run.

    `kind` is "kernel", "communication", "host" (its own work), "io" (reading data) or "waiting" (pauses of the GPU:
    gaps between kernels, latency of launches, no SM free); `family` a kernel family or collective; `axis` and `group`
    those of a collective; `index` the operation of the program whose kernel or communication it is (-1: neither).
    """

    rank: int
    kind: str
    name: str
    start: float
    end: float
    family: str = ""
    axis: str = ""
    group: str = ""
    index: int = -1

    @property
    def duration(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class CriticalPath:
    """Segments in the order of time, without holes, from `begin` to `end` (seconds)."""

    segments: tuple[Segment, ...]
    begin: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.begin

    def parts(self) -> list[dict[str, Any]]:
        """Seconds and share by kind, family, axis and group; the longest first."""
        seconds: dict[tuple[str, str, str, str], float] = defaultdict(float)
        count: dict[tuple[str, str, str, str], int] = defaultdict(int)
        for s in self.segments:
            key = s.kind, s.family, s.axis, s.group
            seconds[key] += s.duration
            count[key] += 1
        ordered = sorted(seconds, key=lambda key: (-seconds[key], key))
        whole = self.length or 1.0
        return [
            {
                **dict(zip(("kind", "family", "axis", "group"), key, strict=True)),
                "seconds": seconds[key],
                "share": seconds[key] / whole,
                "count": count[key],
            }
            for key in ordered
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values: seconds, shares of the length."""
        by_rank: dict[str, float] = defaultdict(float)
        by_name: dict[tuple[str, str], float] = defaultdict(float)
        for s in self.segments:
            by_rank[str(s.rank)] += s.duration
            if s.kind in ("kernel", "communication"):
                by_name[s.kind, s.name] += s.duration
        longest = sorted(by_name, key=lambda key: (-by_name[key], key))[:LISTED]
        return {
            "begin": self.begin,
            "end": self.end,
            "length": self.length,
            "parts": self.parts(),
            "ranks": dict(sorted(by_rank.items(), key=lambda item: int(item[0]))),
            "longest": [
                {"kind": k, "name": n, "seconds": by_name[k, n]} for k, n in longest
            ],
            "segments": len(self.segments),
        }


def critical_path(
    graph: OpGraph,
    run: Run,
    begin: float | None = None,
    end: float | None = None,
    family: Family | None = None,
) -> CriticalPath:
    """The path to the last end of a window, by default of the last step: from the last end of the one before it.

    `family` (program, operation) -> kernel family; default: by the kernel's kind.
    """
    walk = _Walk(graph, run, family)
    if begin is None:
        begin = walk.level(-2) if run.end[0].shape[0] > 1 else 0.0
    return walk.path(begin, walk.level(-1) if end is None else end)


class _Walk:
    """Indices of a run that the walk looks things up in; an operation is (program, index over all steps)."""

    def __init__(self, graph: OpGraph, run: Run, family: Family | None) -> None:
        self.graph, self.run = graph, run
        self.family = family or self._family
        self.launch, self.start, self.end = (
            [a.ravel() for a in c] for c in (run.launch, run.start, run.end)
        )
        self.before = [_before(p) for p in graph.programs]
        self.members: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for r, p in enumerate(graph.programs):
            for i in np.flatnonzero(p.kind == COMM).tolist():
                for c in p.parts[int(p.payload[i])]:
                    self.members[c].append((r, i))

    def level(self, step: int) -> float:
        """The last end of a step on any rank."""
        return max(float(e[step].max()) for e in self.run.end if e.size)

    def path(self, begin: float, end: float) -> CriticalPath:
        segments: list[Segment] = []
        for segment in self._back(end):
            if segment.end > begin and segment.end > segment.start:
                segments.append(segment)
            if segment.start <= begin:
                break
        if segments and segments[-1].start < begin:
            last = segments[-1]
            segments[-1] = replace(last, start=begin)
        return CriticalPath(
            tuple(reversed(segments)), segments[-1].start if segments else end, end
        )

    def _back(self, end: float) -> Iterator[Segment]:
        ends = [np.where(e <= end + SAME, e, -1.0) for e in self.end]
        r = max(range(len(ends)), key=lambda k: float(ends[k].max()))
        at: tuple[int, int, bool] | None = (r, int(ends[r].argmax()), False)
        now = end
        while at is not None:
            r, g, host = at
            at, made = self._host(r, g, now) if host else self._operation(r, g, now)
            for segment in made:
                yield segment
                now = min(now, segment.start)

    def _operation(
        self, r: int, g: int, now: float
    ) -> tuple[tuple[int, int, bool] | None, list[Segment]]:
        """What an operation did until `now`, and what let it begin."""
        p = self.graph.programs[r]
        i = g % len(p)
        if p.kind[i] == SYNC:
            return self._sync(r, g, now)
        if p.kind[i] == KERNEL:
            begun = min(float(self.start[r][g]), now)
            made = [
                Segment(
                    p.rank, "kernel", p.names[i], begun, now, self.family(r, i), index=i
                )
            ]
        else:
            (r, g), made = self._communication(r, g, now)
            begun = made[-1].start
        at, pause = self._started(r, g, begun)
        return at, [*made, *pause]

    def _communication(
        self, r: int, g: int, now: float
    ) -> tuple[tuple[int, int], list[Segment]]:
        """The transfer that an operation waited for, back to the rank that came to it last."""
        p = self.graph.programs[r]
        step, i = divmod(g, len(p))
        own, best = float(self.start[r][g]), (-1.0, -1.0, r, g, -1)
        for c in p.parts[int(p.payload[i])]:
            comm = self.graph.comms[c]
            there = [
                (k, j + step * len(self.graph.programs[k])) for k, j in self.members[c]
            ]
            ends = [float(self.end[k][j]) for k, j in there]
            # A sender whose last bytes lie in its buffers is done before its receiver.
            done = (
                min(max(ends), float(self.end[r][g]))
                if self.run.plans[c].buffered
                else min(ends)
            )
            starters = [
                x for x in there if comm.sender in (-1, self.graph.programs[x[0]].rank)
            ] or there
            k, j = max(starters, key=lambda x: float(self.start[x[0]][x[1]]))
            best = max(best, (done, float(self.start[k][j]), k, j, c))
        _, begun, k, j, c = best
        # A send that waits for nobody may be over when its receiver comes.
        if c < 0 or begun > now or best[0] < own - SAME:
            k, j, begun = r, g, min(own, now)
        comm = self.graph.comms[c if c >= 0 else p.parts[int(p.payload[i])][0]]
        about = comm.op, comm.axis, group_text(comm.groups[0])
        return (k, j), [
            Segment(p.rank, "communication", p.names[i], begun, now, *about, index=i)
        ]

    def _started(
        self, r: int, g: int, begun: float
    ) -> tuple[tuple[int, int, bool] | None, list[Segment]]:
        """What let an operation of the GPU start: its launch, or whatever ended last before it."""
        p = self.graph.programs[r]
        i, base = g % len(p), g - g % len(p)
        previous = self.before[r][i]
        ends = [base + d for d in p.deps[i]]
        ends.append(base + previous if previous < i else base - len(p) + previous)
        known = [
            (float(self.end[r][d]), d)
            for d in ends
            if d >= 0 and self.end[r][d] <= begun + SAME
        ]
        time, cause = max(known, default=(-1.0, -1))
        launched = float(self.launch[r][g])
        gap = float(p.gap[i]) if p.gap is not None else 0.0
        latency = float(p.latency[i]) if p.latency is not None else 0.0
        late = launched + latency
        # Where neither explains the start, SMs were taken: by what ended just then.
        free = (
            self._ended_at(r, begun)
            if p.kind[i] == COMM and max(time + gap, late) < begun - SAME
            else -1
        )
        if free >= 0:
            time, cause, launched, late = begun, free, -1.0, -1.0
        if (
            cause < 0
            or late > time + gap - SAME
            or (p.latency is None and launched > time)
        ):
            pause = Segment(
                p.rank, WAITING, "launch", min(launched, begun), begun, "launch"
            )
            return (r, g, True), [pause]
        return (r, cause, False), [
            Segment(p.rank, WAITING, "gap", min(time, begun), begun, "gap")
        ]

    def _ended_at(self, r: int, time: float) -> int:
        """An operation of the GPU that ended at a moment; -1: none."""
        kinds = self.graph.programs[r].kind
        near = np.flatnonzero(np.abs(self.end[r] - time) <= SAME)
        near = near[
            (kinds[near % len(kinds)] != SYNC) & (self.start[r][near] < time - SAME)
        ]
        return int(near[0]) if len(near) else -1

    def _family(self, r: int, i: int) -> str:
        """Family of a modelled kernel, by its kind."""
        kind = self.graph.kernels[int(self.graph.programs[r].payload[i])].kind
        return next(
            (name for words, name in FAMILIES if any(word in kind for word in words)),
            kind,
        )

    def _sync(
        self, r: int, g: int, now: float
    ) -> tuple[tuple[int, int, bool] | None, list[Segment]]:
        """A wait of the host ended with the last thing it waited for, or found all done."""
        p = self.graph.programs[r]
        i, base = g % len(p), g - g % len(p)
        waited = max(
            (
                (float(self.end[r][base + d]), base + d)
                for d in p.deps[i]
                if base + d >= 0
            ),
            default=(-1.0, -1),
        )
        if waited[0] > self.launch[r][g]:
            return (r, waited[1], False), [
                Segment(p.rank, HOST, p.names[i], min(waited[0], now), now, "host")
            ]
        return (r, g, True), [
            Segment(
                p.rank,
                HOST,
                p.names[i],
                min(float(self.launch[r][g]), now),
                now,
                "host",
            )
        ]

    def _host(
        self, r: int, g: int, now: float
    ) -> tuple[tuple[int, int, bool] | None, list[Segment]]:
        """The host's work before a launch, and what it came from."""
        p = self.graph.programs[r]
        begun = min(float(self.launch[r][g]) - float(p.host[g % len(p)]), now)
        made = [Segment(p.rank, HOST, p.names[g % len(p)], begun, now, "host")]
        full = g - self.graph.launch_limit
        if full >= 0 and abs(self.end[r][full] - begun) <= SAME:
            return (r, full, False), made
        if g == 0:
            return None, made
        if p.kind[(g - 1) % len(p)] == SYNC:
            return (r, g - 1, False), made
        return (r, g - 1, True), made


def _before(p: Program) -> list[int]:
    """The operation before each on its stream; of the first, the last of the step before."""
    last: dict[int, int] = {}
    for i in np.flatnonzero(p.kind != SYNC).tolist():
        last[int(p.stream[i])] = i
    found = [-1] * len(p)
    for i in np.flatnonzero(p.kind != SYNC).tolist():
        found[i] = last[int(p.stream[i])]
        last[int(p.stream[i])] = i
    return found
