"""The picture of a large cluster, folded by symmetry: one box for all that is alike, with how often it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prestep.sim import pictures
from prestep.topologies.fabric import Fabric
from prestep.topologies.show import labels
from prestep.topologies.show.canvas import (
    DARK,
    GREY,
    LINK_COLOURS,
    box,
    canvas,
    node_style,
)
from prestep.topologies.show.folding import Edge, Folded, fold
from prestep.topologies.show.summary import summary

_WIDE, _HIGH = 2.1, 0.78  # of a box
_ACROSS, _DOWN = 3.3, 1.75  # from box to box
_LEAST = 9.2  # width of the picture, for its heading
_HUBS = (
    "pcieswitch",
    "cpu",
    "nic",
    "leaf",
    "spine",
)  # devices that join the others of their layer

_Place = tuple[float, float]
_Places = dict[int, _Place]


def draw(fabric: Fabric, path: Path) -> None:
    """Write the picture; the suffix (.png, .svg) says how."""
    folded = fold(fabric)
    layers = labels.layers(folded)
    places = _places(folded, layers)
    lines = summary(fabric)
    left, right = _sides(places)
    top, low = 1.25 + 0.36 * len(lines), -(len(layers) - 1) * _DOWN - 1.25
    figure, axes = canvas(right - left, top - low)
    _draw_host(axes, fabric, folded, places)
    for number, edge in enumerate(folded.edges):
        _draw_edge(axes, folded, edge, places, number)
    for at, place in places.items():
        _draw_class(axes, folded, at, place)
    _draw_heading(axes, fabric, lines, left + 0.35, top)
    axes.set(xlim=(left, right), ylim=(low, top + 0.3))
    pictures.save(figure, path)


def _places(folded: Folded, layers: list[list[int]]) -> _Places:
    """The middle of every box."""
    return {
        at: ((column - _middle(folded, layer)) * _ACROSS, -level * _DOWN)
        for level, layer in enumerate(layers)
        for column, at in enumerate(layer)
    }


def _middle(folded: Folded, layer: list[int]) -> float:
    """The column that stands in the middle: of devices of a host, the one that joins the others."""
    kinds = [folded.classes[at].kind for at in layer]
    hub = next((kind for kind in _HUBS if kind in kinds), None)
    if hub is None:
        return (len(layer) - 1) / 2
    columns = [column for column, kind in enumerate(kinds) if kind == hub]
    return sum(columns) / len(columns)


def _sides(places: _Places) -> tuple[float, float]:
    """Left and right edge of the picture, wide enough for its heading."""
    across = [x for x, _ in places.values()]
    left, right = min(across) - _WIDE / 2 - 1.0, max(across) + _WIDE / 2 + 1.0
    missing = max(0.0, _LEAST - (right - left)) / 2
    return left - missing, right + missing


class _Frame(NamedTuple):
    left: float
    right: float
    low: float
    high: float


def _around(places: list[_Place]) -> _Frame:
    """A frame with room for a title above the boxes."""
    across, down = zip(*places, strict=True)
    left, right = min(across) - _WIDE / 2 - 0.35, max(across) + _WIDE / 2 + 0.35
    return _Frame(
        left, right, min(down) - _HIGH / 2 - 0.35, max(down) + _HIGH / 2 + 0.5
    )


def _draw_host(axes: Any, fabric: Fabric, folded: Folded, places: _Places) -> None:
    """A frame around what is in hosts."""
    inside = [places[at] for at, one in enumerate(folded.classes) if one.hosts]
    if not inside or not fabric.hosts:
        return
    left, right, low, high = _around(inside)
    box(
        axes,
        (left, low),
        (right - left, high - low),
        0.2,
        fc="#f8fafc",
        ec="#94a3b8",
        lw=1.4,
        zorder=0,
    )
    text = f"{len(fabric.hosts):,} × host" if len(fabric.hosts) > 1 else "host"
    axes.text(
        left + 0.2,
        high - 0.26,
        text,
        fontsize=12,
        fontweight="bold",
        color="#334155",
        va="center",
        zorder=5,
    )


def _draw_class(axes: Any, folded: Folded, at: int, place: _Place) -> None:
    x, y = place
    this = folded.classes[at]
    box(
        axes,
        (x - _WIDE / 2, y - _HIGH / 2),
        (_WIDE, _HIGH),
        0.12,
        **node_style(this.kind, 1.5),
    )
    lines = [labels.title(this), *labels.details(folded, at)]
    step = 0.26 if len(lines) < 3 else 0.23
    centred = {"ha": "center", "va": "center", "color": "white", "zorder": 4}
    for number, line in enumerate(lines):
        height = y + ((len(lines) - 1) / 2 - number) * step
        size, weight = (10.5, "bold") if number == 0 else (7.6, "normal")
        axes.text(x, height, line, fontsize=size, fontweight=weight, **centred)


def _draw_edge(
    axes: Any, folded: Folded, edge: Edge, places: _Places, number: int
) -> None:
    a, b = edge.ends
    if a == b:
        return
    start, end = _line(places[a], places[b])
    level, upright = start[1] == end[1], start[0] == end[0]
    colour = LINK_COLOURS.get(edge.kind, GREY)
    wide = 1.2 + 2.2 * float(
        np.clip(np.log10(max(edge.high, 1e9) / 1e9) / 2.5, 0.0, 1.0)
    )
    axes.plot(
        [start[0], end[0]],
        [start[1], end[1]],
        color=colour,
        lw=wide,
        alpha=0.85,
        zorder=1,
    )
    # Labels of neighbouring slanted lines stand at different heights.
    part = 0.5 if level or upright else (0.36, 0.64)[number % 2]
    text = labels.cables(folded, edge)
    _draw_label(
        axes, start, end, part, text.replace(" per ", "\nper ") if level else text
    )


def _line(one: _Place, other: _Place) -> tuple[_Place, _Place]:
    """From the upper box to the lower, or from left to right; from edge to edge."""
    (xa, ya), (xb, yb) = sorted((one, other), key=lambda place: (-place[1], place[0]))
    if ya == yb:
        return (xa + _WIDE / 2, ya), (xb - _WIDE / 2, yb)
    return (xa, ya - _HIGH / 2), (xb, yb + _HIGH / 2)


def _draw_label(axes: Any, start: _Place, end: _Place, part: float, text: str) -> None:
    x, y = (start[k] + (end[k] - start[k]) * part for k in (0, 1))
    frame = {"boxstyle": "round,pad=0.16", "fc": "white", "ec": "none", "alpha": 0.92}
    centred = {"ha": "center", "va": "center", "color": DARK, "zorder": 2}
    axes.text(x, y, text, fontsize=7.6, bbox=frame, linespacing=1.1, **centred)


def _draw_heading(
    axes: Any, fabric: Fabric, lines: list[tuple[str, str]], left: float, top: float
) -> None:
    hosts = len(fabric.hosts)
    text = f"{fabric.name}   {len(fabric.gpus):,} GPUs ({fabric.gpu_model}), {hosts:,} host{'s' if hosts != 1 else ''}"
    axes.text(
        left, top - 0.1, text, fontsize=13, fontweight="bold", color=DARK, va="center"
    )
    for number, (what, much) in enumerate(lines):
        height = top - 0.5 - 0.32 * number
        axes.text(left, height, what, fontsize=9, color="#475569", va="center")
        axes.text(left + 1.75, height, much, fontsize=9, color=DARK, va="center")
