"""The critical path of a run: what the last end waited for, through all ranks (`prestep.sim.analysis.path_walk`
finds it).

Every moment of the path belongs to one thing, so its shares add up to its length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from prestep.sim.analysis.chain_kernels import Blocks, Chains


HOST, WAITING, IO = "host", "waiting", "io"
LISTED = 10  # operations named in the summary
# Words in a modelled kernel's kind -> family, as replay names them; first match.
FAMILIES = (
    (("masked_fill", "normal"), "elementwise"),
    (("mm",), "gemm"),
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
PART = ("kind", "family", "axis", "group")  # what makes segments the same part


Content = tuple[str, str, str, str, str]  # kind, name, family, axis, group


@cache
def family_of(kind: str) -> str:
    """Family of a modelled kernel's kind, by the names that replay gives them."""
    return next(name for words, name in FAMILIES if any(word in kind for word in words))


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

    @property
    def content(self) -> Content:
        """What it is, without when and where."""
        return self.kind, self.name, self.family, self.axis, self.group


@dataclass(frozen=True)
class CriticalPath:
    """Segments in the order of time, without holes, from `begin` to `end` (seconds).

    A row of layers is one segment, and one for what it waits for its exchanges along an axis. `opened` has their
    kernels, where the path knows its `chains`.
    """

    segments: tuple[Segment, ...]
    begin: float
    end: float
    chains: Chains | None = field(default=None, repr=False, compare=False)

    @property
    def length(self) -> float:
        return self.end - self.begin

    @cached_property
    def opened(self) -> tuple[Segment, ...]:
        """Segments with rows of layers as kernels, gaps between them, and waits for exchanges where they are."""
        return tuple(segment for one in self._stretches for segment in one.pieces())

    @cached_property
    def _stretches(self) -> list[_Stretch]:
        """Segments of one operation each, with the row of layers that it is."""
        key = attrgetter("rank", "index")
        stretches = [_Stretch(list(same)) for _, same in groupby(self.segments, key)]
        layers: dict[int, list[_Stretch]] = defaultdict(list)
        chains = self.chains
        if chains is None:
            return stretches
        for stretch in stretches:
            if chains.chain(*key(stretch.first)):
                layers[stretch.first.rank].append(stretch)
        for rank, some in layers.items():
            ops = np.array([stretch.first.index for stretch in some])
            times = np.array([(one.first.start + one.last.end) / 2 for one in some])
            steps = chains.steps(rank, ops, times)
            for rows, blocks in chains.blocks(rank, steps, ops):
                for block, row in enumerate(rows.tolist()):
                    some[row].blocks, some[row].block = blocks, block
        return stretches

    @cached_property
    def _sums(self) -> dict[Content, tuple[float, int]]:
        """Seconds, and how many pieces, by what they are; whole rows of layers are summed without opening each."""
        sums: dict[Content, list[float]] = defaultdict(lambda: [0.0, 0])
        whole: dict[Blocks, list[int]] = defaultdict(list)
        for stretch in self._stretches:
            if stretch.whole and stretch.blocks is not None:
                whole[stretch.blocks].append(stretch.block)
                continue
            for segment in stretch.pieces():
                one = sums[segment.content]
                one[:] = one[0] + segment.duration, one[1] + 1
        for blocks, some in whole.items():
            for op, seconds, count in blocks.sums(np.array(some)):
                one = sums[_content(blocks, op)]
                one[:] = one[0] + seconds, one[1] + count
        return {what: (seconds, int(count)) for what, (seconds, count) in sums.items()}

    def parts(self) -> list[dict[str, Any]]:
        """Seconds and share by kind, family, axis and group; the longest first."""
        seconds: dict[tuple[str, ...], float] = defaultdict(float)
        count: Counter[tuple[str, ...]] = Counter()
        for (kind, _, *others), (time, pieces) in self._sums.items():
            seconds[kind, *others] += time
            count[kind, *others] += pieces
        whole = self.length or 1.0
        return [
            {
                **dict(zip(PART, key, strict=True)),
                "seconds": seconds[key],
                "share": seconds[key] / whole,
                "count": count[key],
            }
            for key in _longest_first(seconds)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values: seconds, shares of the length."""
        by_rank: dict[int, float] = defaultdict(float)
        for segment in self.segments:
            by_rank[segment.rank] += segment.duration
        return {
            "begin": self.begin,
            "end": self.end,
            "length": self.length,
            "parts": self.parts(),
            "ranks": {str(rank): by_rank[rank] for rank in sorted(by_rank)},
            "longest": self._longest(),
            "segments": sum(count for _, count in self._sums.values()),
        }

    def _longest(self) -> list[dict[str, Any]]:
        """The kernels and communications with the most seconds, by name."""
        seconds: dict[tuple[str, str], float] = defaultdict(float)
        for (kind, name, *_), (time, _) in self._sums.items():
            if kind in ("kernel", "communication"):
                seconds[kind, name] += time
        return [
            {"kind": kind, "name": name, "seconds": seconds[kind, name]}
            for kind, name in _longest_first(seconds)[:LISTED]
        ]


@dataclass
class _Stretch:
    """Segments of the path that are one operation; of a row of layers, which of its blocks it is."""

    segments: list[Segment]
    blocks: Blocks | None = None
    block: int = 0

    @property
    def first(self) -> Segment:
        return self.segments[0]

    @property
    def last(self) -> Segment:
        return self.segments[-1]

    @property
    def whole(self) -> bool:
        """A row of layers that is on the path from its start to its end."""
        blocks, block = self.blocks, self.block
        if blocks is None:
            return False
        start, end = self.first.start, self.last.end
        return bool(start <= blocks.start[block] and end >= blocks.end[block])

    def pieces(self) -> Iterator[Segment]:
        """The kernels, gaps and waits of a row of layers as far as it is on the path; else its segments."""
        if self.blocks is None:
            yield from self.segments
            return
        rank, index, now = self.first.rank, self.first.index, self.first.start
        ops, ends = self.blocks.pieces(self.block)
        what = {op: _content(self.blocks, op) for op in set(ops)}
        for at in range(bisect_right(ends, now), len(ops)):
            end = min(ends[at], self.last.end)
            if end > now:
                kind, name, family, axis, group = what[ops[at]]
                yield Segment(rank, kind, name, now, end, family, axis, group, index)
                now = end


def _content(blocks: Blocks, op: int) -> Content:
    """What a piece of a row of layers is."""
    if op < 0:
        return WAITING, "gap", "gap", "", ""
    graph = blocks.chain.graph
    p = graph.programs[0]
    if op in blocks.groups:
        comm = blocks.pattern.comms(op)[0]
        return "communication", p.names[op], comm.op, comm.axis, blocks.groups[op]
    family = family_of(graph.kernels[int(p.payload[op])].kind)
    return "kernel", p.names[op], family, "", ""


Key = TypeVar("Key", bound=tuple[str, ...])


def _longest_first(seconds: Mapping[Key, float]) -> list[Key]:
    return sorted(seconds, key=lambda key: (-seconds[key], key))


def path_part(part: Mapping[str, Any]) -> str:
    """A part of the critical path: `gemm kernels`, `all_reduce dp (0-3)`, `host`, `waiting: gap`."""
    if part["kind"] == "kernel":
        return f"{part['family']} kernels"
    if part["kind"] == "communication":
        return " ".join(
            word
            for word in (part["family"], part["axis"], f"({part['group']})")
            if word
        )
    if part["kind"] == "io":
        return str(part["family"])
    return (
        part["kind"]
        if part["kind"] == part["family"]
        else f"{part['kind']}: {part['family']}"
    )
