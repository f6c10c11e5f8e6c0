"""Drawings over the time of a step: memory by owner, and the critical path by rank."""

from __future__ import annotations

import numpy as np

from sim.exporters._html.over_time import COLUMNS, PARTS, Alive
from sim.exporters._html.svg import box, drawing, element, label
from sim.units import format_bytes, format_duration

_WIDE, _SIDE, _HIGH, _LANE = 1100.0, 90.0, 220.0, 20.0
MOST_LANES = 24


def memory(found: Alive, colours: dict[str, str], capacity: float | None) -> str:
    """Areas by owner, one on the other; a line where the GPU's memory ends, if that is near."""
    total = np.sum(list(found.owners.values()), axis=0)
    whole = float(total.max()) or 1.0
    near = capacity is not None and capacity < 2.5 * whole
    top = 1.05 * (max(whole, capacity) if near and capacity is not None else whole)
    x = _SIDE + (_WIDE - _SIDE) * np.arange(PARTS + 1) / PARTS
    drawn, under = [], np.zeros(PARTS)
    for owner, size in found.owners.items():
        over = under + size
        points = [*_edge(x, over, top), *reversed(_edge(x, under, top))]
        told = element("title", f"{owner}: at most {format_bytes(float(size.max()))}")
        shape = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        drawn.append(
            element(
                "polygon",
                told,
                points=shape,
                style=f"fill:var(--{colours.get(owner, 'other')})",
            )
        )
        under = over
    drawn += _scale(whole, top, "peak", "axis")
    if near and capacity is not None:
        drawn += _scale(capacity, top, "GPU", "bound")
    drawn += _times(found.end - found.begin, _HIGH)
    return drawing(
        drawn,
        _WIDE,
        _HIGH + 20,
        f"Memory of rank {found.rank} over the last step by owner",
    )


def _edge(x: np.ndarray, height: np.ndarray, top: float) -> list[tuple[float, float]]:
    """Corners of steps, those on a level line left out."""
    y = _HIGH * (1 - height / top)
    points = [(float(x[0]), float(y[0]))]
    for k in range(1, PARTS):
        if abs(float(y[k] - y[k - 1])) > 0.05:
            points += [(float(x[k]), points[-1][1]), (float(x[k]), float(y[k]))]
    return [*points, (float(x[PARTS]), points[-1][1])]


def _scale(size: float, top: float, what: str, line: str) -> list[str]:
    y = _HIGH * (1 - size / top)
    return [
        element(
            "line", x1=_SIDE, x2=_WIDE, y1=y, y2=y, class_=line, stroke_dasharray="5 4"
        ),
        label(what, 0, y + 1, class_="soft"),
        label(format_bytes(size), 0, y + 15, class_="soft"),
    ]


def _times(length: float, y: float) -> list[str]:
    anchors = ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    return [
        label(
            format_duration(part * length),
            _SIDE + (_WIDE - _SIDE) * part,
            y + 16,
            class_="soft",
            text_anchor=anchor,
        )
        for part, anchor in anchors
    ]


def path(lanes: dict[int, list[tuple[int, int, str]]], length: float) -> str:
    """A row for each rank that the path runs through: where it is at which time."""
    drawn, wide = [], (_WIDE - _SIDE) / COLUMNS
    for row, (rank, parts) in enumerate(list(lanes.items())[:MOST_LANES]):
        y = row * _LANE
        drawn.append(label(f"rank {rank}", 0, y + 14, class_="soft"))
        drawn.append(
            element(
                "line",
                x1=_SIDE,
                x2=_WIDE,
                y1=y + _LANE / 2,
                y2=y + _LANE / 2,
                class_="grid",
            )
        )
        for first, columns, colour in parts:
            drawn.append(
                box(
                    _SIDE + first * wide,
                    y + 2,
                    columns * wide,
                    _LANE - 4,
                    style=f"fill:var(--{colour})",
                )
            )
    high = min(len(lanes), MOST_LANES) * _LANE
    return drawing(
        [*drawn, *_times(length, high)], _WIDE, high + 20, "The critical path by rank"
    )
