"""Memory of a rank over the last step by owner, and the critical path from rank to rank, in equal parts of the time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from prestep.sim.analysis.critical_path import CriticalPath
from prestep.sim.analysis.details import Details

PARTS = 240  # of the step, for memory
COLUMNS = 550  # of the step, for the path: two of the picture's pixels each


Stretch = tuple[int, int, str]  # first column, columns, class of colour


@dataclass(frozen=True, eq=False)
class Alive:
    """Bytes that the allocator has handed out over the last step of a rank.

    Attributes
    ----------
    rank : int
    begin, end : float
        Seconds of the run: from the first start on the compute stream to the last end.
    owners : dict of str to np.ndarray, shape (PARTS,)
        At the fullest moment of each part; owners that never have anything are left out.
    """

    rank: int
    begin: float
    end: float
    owners: dict[str, np.ndarray]


def alive(details: Details, rank: int) -> Alive | None:
    """Memory of the simulated rank that stands for `rank` over the last step, in equal parts of its time."""
    simulated = next(
        one for one, members in details.represents.items() if rank in members
    )
    changes = details.allocations[simulated].changes()
    if changes is None:
        return None
    begin, end = changes.begin, changes.end
    length = max(end - begin, 1e-12)
    part = ((changes.time - begin) / length * PARTS).astype(int).clip(0, PARTS - 1)
    fullest = _fullest(part, np.stack(list(changes.owners.values()), axis=1))
    owners = {
        owner: fullest[:, k]
        for k, owner in enumerate(changes.owners)
        if fullest[:, k].max() > 0
    }
    return Alive(rank, begin, end, owners)


def _fullest(part: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Of each part the state with most bytes; parts in which nothing changes keep the last of the one before."""
    total, fullest = state.sum(axis=1), np.zeros((PARTS, state.shape[1]))
    ends = np.searchsorted(part, np.arange(PARTS), side="right")
    first = 0
    for k, last in enumerate(ends.tolist()):
        carried = max(0, first - 1)  # what the part begins with is alive in it too
        fullest[k] = state[
            carried + int(total[carried : max(last, carried + 1)].argmax())
        ]
        first = max(first, last)
    return np.maximum(fullest, 0.0)


def lanes(path: CriticalPath) -> dict[int, list[Stretch]]:
    """Stretches of the path by rank; each column is its longest segment's."""
    owners = [(rank, colour) for _, rank, colour in _columns(path)]
    by_rank: dict[int, list[Stretch]] = {}
    begin = 0
    for (rank, colour), same in groupby(owners):
        columns = len(list(same))
        if rank >= 0:
            by_rank.setdefault(rank, []).append((begin, columns, colour))
        begin += columns
    return dict(sorted(by_rank.items()))


def _columns(path: CriticalPath) -> list[tuple[float, int, str]]:
    """(share covered, rank, class of colour) of the segment that covers most of each column; rank -1 for none."""
    wide = (path.length or 1.0) / COLUMNS
    most: list[tuple[float, int, str]] = [(0.0, -1, "")] * COLUMNS
    for segment in path.opened:
        first = (segment.start - path.begin) / wide
        last = (segment.end - path.begin) / wide
        colour = path_colour(segment.kind, segment.axis, segment.family)
        for column in range(int(first), min(int(last), COLUMNS - 1) + 1):
            covered = min(last, column + 1) - max(first, column)
            most[column] = max(most[column], (covered, segment.rank, colour))
    return most


_FAMILIES = {
    "gemm": "forward",
    "convolution": "forward",
    "attention": "backward",
    "optimizer": "optimizer",
}


def path_colour(kind: str, axis: str, family: str) -> str:
    """Class of colour of a stretch of the critical path."""
    if kind == "communication":
        return axis if axis in ("dp", "tp", "pp", "cp", "ep") else "other"
    if kind == "kernel":
        return _FAMILIES.get(family, "memory")
    return kind if kind in ("host", "io") else "wait"
