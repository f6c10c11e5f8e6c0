"""The critical path of a run: what the last end waited for, through all ranks (`prestep.sim.analysis.path_walk`
finds it).

Every moment of the path belongs to one thing, so its shares add up to its length.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

HOST, WAITING, IO = "host", "waiting", "io"
LISTED = 10  # operations named in the summary
PART = ("kind", "family", "axis", "group")  # what makes segments the same part


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
        seconds: dict[tuple[str, ...], float] = defaultdict(float)
        count: Counter[tuple[str, ...]] = Counter()
        for segment in self.segments:
            key = tuple(getattr(segment, name) for name in PART)
            seconds[key] += segment.duration
            count[key] += 1
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
            "segments": len(self.segments),
        }

    def _longest(self) -> list[dict[str, Any]]:
        """The kernels and communications with the most seconds, by name."""
        seconds: dict[tuple[str, str], float] = defaultdict(float)
        for segment in self.segments:
            if segment.kind in ("kernel", "communication"):
                seconds[segment.kind, segment.name] += segment.duration
        return [
            {"kind": kind, "name": name, "seconds": seconds[kind, name]}
            for kind, name in _longest_first(seconds)[:LISTED]
        ]


Key = TypeVar("Key", bound=tuple[str, ...])


def _longest_first(seconds: Mapping[Key, float]) -> list[Key]:
    return sorted(seconds, key=lambda key: (-seconds[key], key))


def path_part(part: Mapping[str, Any]) -> str:
    """A part of the critical path: `gemm kernels`, `all_reduce dp (0-3)`, `host`, `waiting: gap`."""
    if part["kind"] == "kernel" and part["family"] == "chain":
        return "kernels of layers"
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
