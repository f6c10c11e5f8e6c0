"""Spans of the last step as compact columns for the page's script: by rank and stream, alike ranks once."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.analysis.prediction import Prediction
from sim.analysis.timeline import COMMUNICATION, Timeline

MOST_RANKS = 24
MOST_SPANS = 80_000  # in the file; what is beyond is merged
ALIKE = 1e-3  # of the step: ranks whose spans lie within it are shown once
FINEST = 4000  # merged spans are at least this part of the step apart

Data = dict[str, Any]


def gantt(result: Prediction) -> Data | None:
    """Rows of the picture; None without a timeline.

    ``rows`` have ``rank``, how many ranks it ``stands`` for, ``stream``, and by span: starts ``s`` (each after the one
    before), durations ``d``, waits ``w`` (all whole ns), names ``n`` and facts ``m`` (indices into the tables).
    """
    timeline = result.timeline
    if timeline is None or len(timeline) == 0:
        return None
    spans = timeline.of_step(int(timeline.steps[-1]))
    begin, end = float(spans["start"].min()), float(spans["end"].max())
    weights = _weights(result, spans)
    groups = _alike(spans, (end - begin) * ALIKE)
    shown = _choose(groups, spans, weights)
    words, facts, rows = _Table(), _Table(), []
    room = max(1, MOST_SPANS // max(1, len(shown)))
    for rank, members in sorted(shown.items()):
        mine = spans.of_rank(rank)
        merged = len(mine) > room
        for stream in dict.fromkeys(
            sorted(
                mine["stream"].tolist(), key=lambda s: (s != "compute", s == "host", s)
            )
        ):
            row = mine.select(mine.matches("stream", stream))
            row = row.select(np.argsort(row["start"], kind="stable"))
            columns = (
                _merged(row, begin, (end - begin) / FINEST, words, facts)
                if merged
                else None
            )
            columns = columns or _columns(row, begin, words, facts)
            stands = sum(weights[m] for m in members)
            rows.append(
                {
                    "rank": rank,
                    "stands": stands,
                    "stream": stream,
                    "merged": merged,
                    **columns,
                }
            )
    return {
        "length": round((end - begin) * 1e9),
        "rows": rows,
        "names": list(words.items),
        "facts": [list(fact) for fact in facts.items],
        "ranks": sum(weights.values()),
        "shown": sum(weights[m] for members in shown.values() for m in members),
    }


class _Table:
    """Values by the number in which they came."""

    def __init__(self) -> None:
        self.items: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.items.setdefault(value, len(self.items))


def _weights(result: Prediction, spans: Timeline) -> dict[int, int]:
    """How many ranks each simulated one stands for."""
    known = {} if result.details is None else result.details.represents
    return {int(rank): len(known.get(int(rank), (rank,))) for rank in spans.ranks}


def _alike(spans: Timeline, tolerance: float) -> dict[int, list[int]]:
    """Ranks by the first one whose operations start and end at the same times, to `tolerance` seconds."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    order = np.argsort(spans["rank"], kind="stable")
    ranks, first = np.unique(spans["rank"][order], return_index=True)
    names = spans.words("name").codes
    for rank, rows in zip(ranks.tolist(), np.split(order, first[1:]), strict=True):
        start, end = spans["start"][rows], spans["end"][rows]
        times = (
            np.round(np.array([start.sum(), end.sum()]) / max(1, len(rows)) / tolerance)
            .astype(int)
            .tolist()
        )
        groups.setdefault((names[rows].tobytes(), *times), []).append(rank)
    return {members[0]: members for members in groups.values()}


def _choose(
    groups: dict[int, list[int]], spans: Timeline, weights: dict[int, int]
) -> dict[int, list[int]]:
    """At most MOST_RANKS groups: the one that ends last, the one that ends first, and others evenly between."""
    if len(groups) <= MOST_RANKS:
        return groups
    end = {rank: float(spans["end"][spans["rank"] == rank].max()) for rank in groups}
    ordered = sorted(groups, key=lambda rank: (end[rank], rank))
    kept = {
        ordered[round(i)] for i in np.linspace(0, len(ordered) - 1, MOST_RANKS).tolist()
    }
    return {rank: members for rank, members in groups.items() if rank in kept}


def _columns(row: Timeline, begin: float, words: _Table, facts: _Table) -> Data:
    start = _ns(row["start"] - begin)
    waits = np.where(
        row.matches("kind", *COMMUNICATION), _ns(row["ready"] - row["start"]), 0
    )
    keys = ("kind", "phase", "axis", "layer", "microbatch", "bytes", "flops", "group")
    values = zip(*(row[key].tolist() for key in keys), strict=True)
    return {
        "s": np.diff(start, prepend=0).tolist(),
        "d": (_ns(row["end"] - begin) - start).tolist(),
        "w": waits.tolist() if waits.any() else [],
        "n": [words.number(name) for name in row["name"].tolist()],
        "m": [facts.number(value) for value in values],
    }


def _merged(
    row: Timeline, begin: float, apart: float, words: _Table, facts: _Table
) -> Data:
    """Neighbours of one phase and axis that lie closer than `apart` seconds as one span named by its longest."""
    phase, axis = row.words("phase").codes, row.words("axis").codes
    start, end = row["start"], row["end"]
    cut = (
        (np.diff(phase) != 0)
        | (np.diff(axis) != 0)
        | (start[1:] - end[:-1] > apart)
        | (np.diff(start) > apart)
    )
    first = np.concatenate([[0], np.flatnonzero(cut) + 1])
    last = np.concatenate([first[1:], [len(row)]]) - 1
    lead = row.select(first)
    made = _columns(lead, begin, words, facts)
    at = _ns(start[first] - begin)
    made["d"] = (_ns(end[last] - begin) - at).tolist()
    counts = (last - first + 1).tolist()
    texts = [
        f"{name} and {n - 1} more" if n > 1 else name
        for name, n in zip(lead["name"].tolist(), counts, strict=True)
    ]
    return made | {"n": [words.number(text) for text in texts]}


def _ns(seconds: np.ndarray) -> np.ndarray:
    return np.rint(seconds * 1e9).astype(np.int64)
