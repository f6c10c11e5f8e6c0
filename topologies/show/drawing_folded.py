"""The picture of a large cluster, folded by symmetry: one box for all that is alike, with how often it is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.units import format_bandwidth
from topologies.show.drawing import _GREY, _LINK_COLOURS, _NODE_COLOURS, _canvas, _save
from topologies.show.folding import Class, Edge, Folded, fold
from topologies.show.summary import summary
from topologies.show.tiers import TIERS

if TYPE_CHECKING:
    from topologies.fabric import Fabric

_WIDE, _HIGH = 2.1, 0.78  # of a box
_ACROSS, _DOWN = 3.3, 1.75  # from box to box
_LEAST = 9.2  # width of the picture, for its heading
_INSIDE = (
    ("nic", "storage_nic"),
    ("nvme", "pcieswitch", "cpu", "memory"),
    ("gpu",),
    ("nvswitch",),
)
_DARK = "#0f172a"
_Places = dict[int, tuple[float, float]]


def draw(fabric: Fabric, path: Path) -> None:
    """Write the picture; the suffix (.png, .svg) says how."""
    folded = fold(fabric)
    rows = _rows(folded)
    places = {
        at: ((column - _middle(folded, row)) * _ACROSS, -level * _DOWN)
        for level, row in enumerate(rows)
        for column, at in enumerate(row)
    }
    across = [x for x, _ in places.values()]
    left, right = min(across) - _WIDE / 2 - 1.0, max(across) + _WIDE / 2 + 1.0
    missing = max(0.0, _LEAST - (right - left)) / 2
    left, right = left - missing, right + missing
    lines = summary(fabric)
    top, low = 1.25 + 0.36 * len(lines), -(len(rows) - 1) * _DOWN - 1.25
    figure, axes = _canvas(right - left, top - low)
    _host_box(axes, fabric, folded, places)
    for at, edge in enumerate(folded.edges):
        _edge(axes, folded, edge, places, at)
    for at, (x, y) in places.items():
        _box(axes, folded, at, x, y)
    _heading(axes, fabric, lines, left + 0.35, top)
    axes.set(xlim=(left, right), ylim=(low, top + 0.3))
    _save(figure, path)


def _middle(folded: Folded, row: list[int]) -> float:
    """The column of a row that stands in the middle: of devices of a host, the one that joins the others."""
    kinds = [folded.classes[at].kind for at in row]
    hub = next(
        (
            kind
            for kind in ("pcieswitch", "cpu", "nic", "leaf", "spine")
            if kind in kinds
        ),
        None,
    )
    if hub is None:
        return (len(row) - 1) / 2
    columns = [column for column, kind in enumerate(kinds) if kind == hub]
    return sum(columns) / len(columns)


def _rows(folded: Folded) -> list[list[int]]:
    """Classes from top to bottom: core, spines, leaves, then a host from its NICs to its NVSwitches."""
    outside = [kind for kind in reversed(TIERS) if kind != "nvswitch"]
    named = {kind for row in _INSIDE for kind in row} | set(outside)
    other = list(dict.fromkeys(c.kind for c in folded.classes if c.kind not in named))
    beside = {
        "spine": ["spine", "storage_spine", "storage"],
        "leaf": ["leaf", "storage_leaf"],
    }
    other = [kind for kind in other if not kind.startswith("storage")]
    rows = (
        [beside.get(kind, [kind]) for kind in outside]
        + [[kind] for kind in other]
        + [list(row) for row in _INSIDE]
    )
    found = []
    for row in rows:
        # A kind that stands in hosts and outside of them keeps to its own row; order: by kind, then first appearance.
        here = [
            at for kind in row for at, c in enumerate(folded.classes) if c.kind == kind
        ]
        found.append(here)
    left = set(range(len(folded.classes))) - {at for row in found for at in row}
    return [row for row in [*found, sorted(left)] if row]


def _host_box(axes: Any, fabric: Fabric, folded: Folded, places: _Places) -> None:
    """A frame around what is in hosts."""
    from matplotlib.patches import FancyBboxPatch

    inside = [places[at] for at, c in enumerate(folded.classes) if c.hosts]
    if not inside or not fabric.hosts:
        return
    left, right = (
        min(x for x, _ in inside) - _WIDE / 2 - 0.35,
        max(x for x, _ in inside) + _WIDE / 2 + 0.35,
    )
    low, high = (
        min(y for _, y in inside) - _HIGH / 2 - 0.35,
        max(y for _, y in inside) + _HIGH / 2 + 0.5,
    )
    style: dict[str, Any] = {"fc": "#f8fafc", "ec": "#94a3b8", "lw": 1.4, "zorder": 0}
    shape = "round,pad=0,rounding_size=0.2"
    axes.add_patch(
        FancyBboxPatch((left, low), right - left, high - low, boxstyle=shape, **style)
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


def _box(axes: Any, folded: Folded, at: int, x: float, y: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    this = folded.classes[at]
    style: dict[str, Any] = {
        "fc": _NODE_COLOURS.get(this.kind, _GREY),
        "ec": "white",
        "lw": 1.5,
        "zorder": 3,
    }
    shape = "round,pad=0,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch(
            (x - _WIDE / 2, y - _HIGH / 2), _WIDE, _HIGH, boxstyle=shape, **style
        )
    )
    lines = [_told(this), *_below(folded, at)]
    for number, line in enumerate(lines):
        height = y + ((len(lines) - 1) / 2 - number) * (
            0.26 if len(lines) < 3 else 0.23
        )
        size, weight = (10.5, "bold") if number == 0 else (7.6, "normal")
        axes.text(
            x,
            height,
            line,
            color="white",
            fontsize=size,
            fontweight=weight,
            ha="center",
            va="center",
            zorder=4,
        )


def _told(this: Class) -> str:
    """`8 × gpu` in each host; outside hosts, or unevenly in them, how many there are."""
    each = (
        this.per_host
        if this.per_host == int(this.per_host) and this.hosts
        else this.count
    )
    return f"{each:,.0f} × {this.kind}" if each != 1 else this.kind


def _below(folded: Folded, at: int) -> list[str]:
    """Smaller lines of a box: how many in all, or its name; links among themselves."""
    this, lines = folded.classes[at], []
    if this.count == 1 and (this.hosts or this.example != this.kind):
        lines.append(this.example)
    elif this.hosts > 1:
        whole = this.per_host == int(this.per_host)
        lines.append(f"{this.count:,} in all" if whole else f"in {this.hosts:,} hosts")
    lines += [f"{e.kind}: {_rate(e)}" for e in folded.edges if e.ends == (at, at)]
    return lines


def _rate(edge: Edge) -> str:
    low, high = format_bandwidth(edge.low), format_bandwidth(edge.high)
    return (
        low
        if low == high
        else f"{low.split()[0]}-{high}"
        if low.split()[1] == high.split()[1]
        else f"{low}-{high}"
    )


def _edge(axes: Any, folded: Folded, edge: Edge, places: _Places, number: int) -> None:
    a, b = edge.ends
    if a == b:
        return
    (xa, ya), (xb, yb) = sorted(
        (places[a], places[b]), key=lambda place: (-place[1], place[0])
    )
    if ya == yb:
        start, end = (xa + _WIDE / 2, ya), (xb - _WIDE / 2, yb)
    else:
        start, end = (xa, ya - _HIGH / 2), (xb, yb + _HIGH / 2)
    colour = _LINK_COLOURS.get(edge.kind, _GREY)
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
    part = 0.5 if ya == yb or xa == xb else (0.36, 0.64)[number % 2]
    x, y = (start[k] + (end[k] - start[k]) * part for k in (0, 1))
    box = {"boxstyle": "round,pad=0.16", "fc": "white", "ec": "none", "alpha": 0.92}
    text = (
        _label(folded, edge)
        if ya != yb
        else _label(folded, edge).replace(" per ", "\nper ")
    )
    axes.text(
        x,
        y,
        text,
        fontsize=7.6,
        color=_DARK,
        ha="center",
        va="center",
        bbox=box,
        zorder=2,
        linespacing=1.1,
    )


def _label(folded: Folded, edge: Edge) -> str:
    """`32 × 48 GB/s per leaf`: cables of one node of the end that has more of them, if that is a whole number."""
    ends = sorted(
        (folded.classes[at] for at in edge.ends), key=lambda c: (-c.count, c.kind)
    )
    for this in ends:
        if edge.cables % this.count == 0:
            each = edge.cables // this.count
            times = f"{each} × " if each > 1 else ""
            return f"{times}{_rate(edge)}" + (
                f" per {this.kind}" if this.count > 1 else ""
            )
    return f"{edge.cables:,} × {_rate(edge)} in all"


def _heading(
    axes: Any, fabric: Fabric, lines: list[tuple[str, str]], left: float, top: float
) -> None:
    hosts = len(fabric.hosts)
    text = f"{fabric.name}   {len(fabric.gpus):,} GPUs ({fabric.gpu_model}), {hosts:,} host{'s' if hosts != 1 else ''}"
    axes.text(
        left, top - 0.1, text, fontsize=13, fontweight="bold", color=_DARK, va="center"
    )
    for number, (what, much) in enumerate(lines):
        height = top - 0.5 - 0.32 * number
        axes.text(left, height, what, fontsize=9, color="#475569", va="center")
        axes.text(left + 1.75, height, much, fontsize=9, color=_DARK, va="center")
