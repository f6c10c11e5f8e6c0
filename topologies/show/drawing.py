"""The picture of a cluster: nodes in layers, links as lines whose width follows their bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from prestep.sim import pictures
from prestep.sim.units import format_bandwidth
from prestep.topologies.core.links import Ints
from prestep.topologies.fabric import Fabric
from prestep.topologies.show import drawing_folded
from prestep.topologies.show.canvas import (
    DARK,
    GREY,
    LINK_COLOURS,
    box,
    canvas,
    node_style,
)

# Top to bottom; kinds not named here (leaf, spine, ...) stand below the network, in order of appearance.
_LAYERS = (
    ("nvswitch",),
    ("gpu",),
    ("pcieswitch",),
    ("cpu", "memory"),
    ("nic", "nvme"),
    ("network",),
)
_HEIGHT, _BOX = 1.35, (0.84, 0.46)
MOST_NODES = 44  # of a picture with a box for every node: one host of eight GPUs


@dataclass(frozen=True)
class _Layout:
    """Places of the nodes, in units of one device's width."""

    x: dict[str, float]
    y: dict[str, float]
    width: float


def draw(fabric: Fabric, path: Path) -> None:
    """Write the picture; the suffix (.png, .svg) says how. Several hosts are folded by symmetry."""
    if len(fabric.nodes) > MOST_NODES or len(fabric.hosts) > 1:
        drawing_folded.draw(fabric, path)
        return
    layout = _layout(fabric)
    layers = len(set(layout.y.values()))
    figure, axes = canvas(max(8.0, layout.width * 1.05), 1.6 + layers * 1.12)
    _draw_links(axes, fabric, layout)
    for at, name in enumerate(fabric.nodes.names):
        _draw_node(axes, name, fabric.nodes.kinds[at], layout.x[name], layout.y[name])
    _title(axes, fabric, layout)
    _legend(axes, fabric)
    low, high = min(layout.y.values()), max(layout.y.values())
    axes.set(xlim=(-0.75, layout.width - 0.25), ylim=(low - 1.25, high + 1.0))
    pictures.save(figure, path)


def _layout(fabric: Fabric) -> _Layout:
    """GPUs in columns of equal width; every other node in the middle of what it joins."""
    rows = _rows(fabric)
    width = float(max(len(row) for row in rows))
    x = _evenly(fabric.gpus, width)
    middle = next(at for at, row in enumerate(rows) if row[0] in x)
    # Downwards from the GPUs, then upwards, so that each layer finds neighbours that have their place.
    for row in [*rows[middle + 1 :], *reversed(rows[:middle])]:
        x |= _placed(row, _wanted(fabric, row, x, width), width)
    y = {name: -_HEIGHT * at for at, row in enumerate(rows) for name in row}
    return _Layout(x, y, max(x.values()) + 1)


def _rows(fabric: Fabric) -> list[list[str]]:
    """The nodes of every layer that has some, top to bottom."""
    named = {kind for layer in _LAYERS for kind in layer}
    others = [kind for kind in dict.fromkeys(fabric.nodes.kinds) if kind not in named]
    layers = [*_LAYERS, *((kind,) for kind in others)]
    rows = [
        [n for kind in layer for n in fabric.nodes.of_kind(kind)] for layer in layers
    ]
    return [row for row in rows if row]


def _evenly(names: Sequence[str], width: float) -> dict[str, float]:
    """Places at equal distances over a width."""
    return {
        name: (at + 0.5) * width / len(names) - 0.5 for at, name in enumerate(names)
    }


def _wanted(
    fabric: Fabric, row: list[str], x: dict[str, float], width: float
) -> dict[str, float]:
    """The middle of the neighbours that have a place; memory stands outward of its CPU."""
    wanted: dict[str, float] = {}
    step = max(2.0, width / len(fabric.gpus))
    for name in row:
        around = fabric.links.dst[fabric.links.src == name].tolist()
        above = [x[end] for end in around if end in x]
        beside = [wanted[end] for end in around if end in wanted]
        if above:
            wanted[name] = float(np.mean(above))
        elif beside:
            wanted[name] = beside[0] + (-step if beside[0] < (width - 1) / 2 else step)
        else:
            wanted[name] = (width - 1) / 2
    return wanted


def _placed(row: list[str], wanted: dict[str, float], width: float) -> dict[str, float]:
    """At least one unit apart and as near to what they want as can be; else evenly."""
    order = sorted(row, key=lambda name: wanted[name])
    spread = wanted[order[-1]] - wanted[order[0]]
    if spread < 1e-9 and len(row) > 2:
        return _evenly(order, width)
    levels = _rising([wanted[name] - at for at, name in enumerate(order)])
    return {name: levels[at] + at for at, name in enumerate(order)}


def _rising(values: list[float]) -> list[float]:
    """The nearest numbers that never fall (isotonic regression): blocks that would fall take their mean."""
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1].extend(last)
    return [float(np.mean(block)) for block in blocks for _ in block]


def _draw_links(axes: Any, fabric: Fabric, layout: _Layout) -> None:
    links = fabric.links
    widest = float(links.bandwidth.max())
    for row in range(len(links)):
        a, b, kind = links.src[row], links.dst[row], str(links.kind[row])
        if links.index[b, a] < row:
            continue
        thickness = 0.6 + 3.4 * float(np.sqrt(links.bandwidth[row] / widest))
        style = {
            "color": LINK_COLOURS.get(kind, GREY),
            "lw": thickness,
            "solid_capstyle": "round",
            "zorder": 1,
        }
        axes.plot(*_line(layout, a, b), alpha=0.75, **style)
        if links.count[row] > 1 and a == fabric.gpus[0]:
            _count(axes, layout, a, b, int(links.count[row]))


def _line(layout: _Layout, a: str, b: str) -> tuple[list[float], list[float]]:
    """From edge to edge, so that a flat line does not hide behind the boxes beside its end; level within a layer."""
    down = np.sign(layout.y[b] - layout.y[a]) * _BOX[1] / 2
    return [layout.x[a], layout.x[b]], [layout.y[a] + down, layout.y[b] - down]


def _count(axes: Any, layout: _Layout, a: str, b: str, count: int) -> None:
    """How many physical links a line stands for, written once, at the first GPU."""
    part = 0.4
    (xa, xb), (ya, yb) = _line(layout, a, b)
    frame = {"boxstyle": "circle,pad=0.18", "fc": "white", "ec": "none", "alpha": 0.9}
    place = xa + (xb - xa) * part, ya + (yb - ya) * part
    axes.text(
        *place,
        str(count),
        fontsize=8,
        ha="center",
        va="center",
        color="#3f6212",
        bbox=frame,
        zorder=2,
    )


def _draw_node(axes: Any, name: str, kind: str, x: float, y: float) -> None:
    wide, high = _BOX
    box(axes, (x - wide / 2, y - high / 2), _BOX, 0.09, **node_style(kind, 1.2))
    size = 8.5 if len(name) < 11 else 7.5
    axes.text(
        x,
        y,
        name,
        color="white",
        fontsize=size,
        fontweight="bold",
        ha="center",
        va="center",
        zorder=4,
    )


def _title(axes: Any, fabric: Fabric, layout: _Layout) -> None:
    top, hosts = max(layout.y.values()), len(fabric.hosts)
    text = f"{fabric.name}   {len(fabric.gpus)} GPUs ({fabric.gpu_model}), {hosts} host{'s' if hosts != 1 else ''}"
    axes.text(
        -0.5, top + 0.62, text, fontsize=13, fontweight="bold", color=DARK, va="center"
    )


def _legend(axes: Any, fabric: Fabric) -> None:
    handles = []
    for kind in fabric.links.kinds:
        rows = fabric.links.of_kind(kind)
        label = f"{kind}: {_total(fabric, rows)} x {_range(fabric, rows)}"
        handles.append(
            Line2D([], [], color=LINK_COLOURS.get(kind, GREY), lw=3, label=label)
        )
    note = "per physical link and direction, payload"
    axes.legend(
        handles=handles,
        loc="lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
        title=note,
        title_fontsize=8.5,
    )


def _total(fabric: Fabric, rows: Ints) -> int:
    return int(fabric.links.count[rows].sum()) // 2


def _range(fabric: Fabric, rows: Ints) -> str:
    one = fabric.links.bandwidth[rows] / fabric.links.count[rows]
    low, high = format_bandwidth(float(one.min())), format_bandwidth(float(one.max()))
    return low if low == high else f"{low} to {high}"
