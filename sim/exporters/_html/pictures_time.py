"""Drawings over the time of a step: memory by owner, and the critical path by rank."""

from __future__ import annotations

import numpy as np

from prestep.sim import markup
from prestep.sim.exporters._html.over_time import COLUMNS, PARTS, Alive, Stretch
from prestep.sim.units import format_bytes

_SIDE, _HIGH, _LANE = 90.0, 220.0, 20.0
MOST_LANES = 24
_TICKS = ((0.0, "start"), (0.5, "middle"), (1.0, "end"))


def memory(
    owned: Alive, colours: dict[str, str], capacity: float | None
) -> markup.Markup:
    """Areas by owner, one on the other; a line where the GPU's memory ends, if that is near."""
    return markup.for_each_window(lambda wide: _memory(owned, colours, capacity, wide))


def _memory(
    owned: Alive, colours: dict[str, str], capacity: float | None, wide: float
) -> markup.Markup:
    total = np.sum(list(owned.owners.values()), axis=0)
    peak = float(total.max()) or 1.0
    limit = capacity if capacity is not None and capacity < 2.5 * peak else None
    top = 1.05 * max(peak, limit or 0.0)
    drawn = _areas(owned, colours, top, wide)
    drawn += _scale(peak, top, "peak", "axis", wide)
    if limit is not None:
        drawn += _scale(limit, top, "GPU", "bound", wide)
    drawn += markup.time_axis(owned.end - owned.begin, _SIDE, wide, _HIGH + 16, _TICKS)
    name = f"Memory of rank {owned.rank} over the last step by owner"
    return markup.drawing(drawn, wide, _HIGH + 20, name)


def _areas(
    owned: Alive, colours: dict[str, str], top: float, wide: float
) -> list[markup.Markup]:
    """An area for each owner on those before it; `top` is the picture's height in bytes."""
    x = _SIDE + (wide - _SIDE) * np.arange(PARTS + 1) / PARTS
    areas = []
    under = np.zeros(PARTS)
    for owner, size in owned.owners.items():
        over = under + size
        corners = [*_edge(x, over, top), *reversed(_edge(x, under, top))]
        points = " ".join(f"{left:.1f},{height:.1f}" for left, height in corners)
        most = format_bytes(float(size.max()))
        tooltip = markup.element("title", f"{owner}: at most {most}")
        style = markup.fill(colours.get(owner, "other"))
        areas.append(markup.element("polygon", tooltip, points=points, style=style))
        under = over
    return areas


def _edge(x: np.ndarray, height: np.ndarray, top: float) -> list[tuple[float, float]]:
    """Corners of steps, those on a level line left out."""
    y = _HIGH * (1 - height / top)
    points = [(float(x[0]), float(y[0]))]
    for k in range(1, PARTS):
        if abs(float(y[k] - y[k - 1])) > 0.05:
            points += [(float(x[k]), points[-1][1]), (float(x[k]), float(y[k]))]
    return [*points, (float(x[PARTS]), points[-1][1])]


def _scale(
    size: float, top: float, name: str, line: str, wide: float
) -> list[markup.Markup]:
    """A dashed line at `size` bytes, with its name."""
    y = _HIGH * (1 - size / top)
    return [
        markup.horizontal(y, _SIDE, wide, class_=line, stroke_dasharray="5 4"),
        markup.label(name, 0, y + 1, class_="soft"),
        markup.label(format_bytes(size), 0, y + 15, class_="soft"),
    ]


def path(lanes: dict[int, list[Stretch]], length: float) -> markup.Markup:
    """A row for each rank that the path runs through: where it is at which time."""
    return markup.for_each_window(lambda wide: _path(lanes, length, wide))


def _path(lanes: dict[int, list[Stretch]], length: float, wide: float) -> markup.Markup:
    drawn: list[markup.Markup] = []
    for row, (rank, stretches) in enumerate(list(lanes.items())[:MOST_LANES]):
        top = row * _LANE
        drawn.append(markup.label(f"rank {rank}", 0, top + 14, class_="soft"))
        drawn.append(markup.horizontal(top + _LANE / 2, _SIDE, wide, class_="grid"))
        column = (wide - _SIDE) / COLUMNS
        drawn += [_stretch(top, column, *stretch) for stretch in stretches]
    high = min(len(lanes), MOST_LANES) * _LANE
    drawn += markup.time_axis(length, _SIDE, wide, high + 16, _TICKS)
    return markup.drawing(drawn, wide, high + 20, "The critical path by rank")


def _stretch(
    top: float, column: float, first: int, columns: int, colour: str
) -> markup.Markup:
    left = _SIDE + first * column
    return markup.box(
        left, top + 2, columns * column, _LANE - 4, style=markup.fill(colour)
    )
