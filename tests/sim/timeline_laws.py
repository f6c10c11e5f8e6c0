"""What holds of every timeline: time runs forward, and one stream does one thing at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prestep.sim.analysis.timeline import REQUIRED, Timeline
from prestep.sim.errors import PrestepError


def check(timeline: Timeline, tolerance: float = 1e-12) -> None:
    """Raises if the timeline breaks a law of physics: time runs forward and one stream never overlaps itself.

    `tolerance` (seconds) allows for rounding.

    Raises
    ------
    PrestepError
        Naming the first offending span.
    """
    for broken, why in _broken_laws(timeline, tolerance):
        _refuse(timeline, broken, why)


def _broken_laws(
    timeline: Timeline, tolerance: float
) -> Iterator[tuple[np.ndarray, str]]:
    """(rows that break a law, what they do) for every law."""
    start, end, ready = timeline["start"], timeline["end"], timeline["ready"]
    yield ~(np.isfinite(start) & np.isfinite(end)), "has no finite start and end"
    yield end < start - tolerance, "ends before it starts"
    outside = (ready < start - tolerance) | (ready > end + tolerance)
    yield outside, "is ready outside its own time"
    early = timeline["launch"] > start + tolerance
    yield early, "starts before the host has launched it"
    overlaps = _overlaps(timeline, tolerance)
    yield overlaps, "starts before the previous span of its stream has ended"


def _overlaps(timeline: Timeline, tolerance: float) -> np.ndarray:
    """Which spans start before the one before them on their stream has ended."""
    start, end, rank = timeline["start"], timeline["end"], timeline["rank"]
    stream = timeline.words("stream").codes
    order = np.lexsort((end, start, stream, rank))
    same_stream = (np.diff(rank[order]) == 0) & (np.diff(stream[order]) == 0)
    early = start[order][1:] < end[order][:-1] - tolerance
    overlaps = np.zeros(len(timeline), dtype=bool)
    overlaps[order[1:]] = same_stream & early
    return overlaps


def _refuse(timeline: Timeline, wrong: np.ndarray, why: str) -> None:
    rows = np.flatnonzero(wrong)
    if not len(rows):
        return
    first = {name: timeline[name][rows[0]] for name in (*REQUIRED, "step")}
    where = f"rank {first['rank']}, stream {first['stream']}, step {first['step']}"
    what = f'"{first["name"]}" [{first["start"]:.9g} s, {first["end"]:.9g} s]'
    raise PrestepError(f"timeline: {where}: {what} {why} ({len(rows)} such spans)")
