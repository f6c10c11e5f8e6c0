"""The inside of a host as a drawing: processors on top, PCIe below them, devices, and NVSwitches at the bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from prestep.sim.markup import Markup, box, label, markup
from prestep.topologies.fabric import Fabric
from prestep.topologies.show import labels
from prestep.topologies.show.folding import Folded

#: Rows from top to bottom; kinds not named here stand with the devices.
_ROWS = (("memory", "cpu"), ("pcieswitch",), (), ("nvswitch",))
_DEVICES = 2
_LEFT, _RIGHT = 190.0, 1090.0
_HIGH, _DOWN = 26.0, 78.0
_WIDEST = 84.0
_NARROW = 36.0
_SAG = 150.0  # of the longest arc below the lowest row; a curve goes half as deep
_MOST = (
    26  # devices in a row; of more those that are alike and joined alike are one box
)


Boxes = dict[int, int]  # the node whose box each node has
Link = tuple[int, int, int]  # two nodes, and a row of the fabric's links


class Panel(NamedTuple):
    """A drawing, and where it ends."""

    drawn: Markup
    low: float


def host(
    fabric: Fabric,
    folded: Folded,
    edge_of: Callable[[int], int],
    over: Callable[[int, str], Sequence[Markup]] | None,
    top: float,
) -> Panel:
    """The first host with all that is in it, below `top`; an empty panel where a host has one device."""
    src, dst = fabric.ends
    members = np.flatnonzero(fabric.nodes.host_at == 0)
    if len(members) < 2:
        return Panel(Markup(), top)
    own = np.zeros(len(fabric.nodes), dtype=bool)
    own[members] = True
    links = [
        (int(src[r]), int(dst[r]), r)
        for r in np.flatnonzero(own[src] & own[dst] & (src < dst)).tolist()
    ]
    boxes = _boxes(fabric, members.tolist(), links)
    place = _places(fabric, boxes, links, top + 24)
    lowest = max(y for _, y, _ in place.values())
    shapes, words, lines, done = (
        list[Markup](),
        list[Markup](),
        list[Markup](),
        set[tuple[int, int]](),
    )
    for a, b, row in links:
        pair = boxes[a], boxes[b]
        if pair[0] == pair[1] or pair in done:
            continue
        done.add(pair)
        path = _path(place[pair[0]], place[pair[1]], lowest)
        lines += [
            labels.cable(folded, edge_of(row), path),
            *(over(edge_of(row), path) if over else ()),
        ]
    for node, (x, y, wide) in place.items():
        kind = fabric.nodes.kinds[node]
        alike = sum(one == node for one in boxes.values())
        name = fabric.nodes.names[node].rpartition("/")[2]
        text = (
            f"{alike} × {kind}"
            if alike > 1
            else labels.short(name, max(3, int(wide / 5.6)))
        )
        shape = {
            "gpu": "gpu",
            "nic": "nic",
            "nvswitch": "switch",
            "pcieswitch": "switch",
        }.get(kind, "device")
        shapes.append(
            box(
                x - wide / 2,
                y,
                wide,
                _HIGH,
                fabric.nodes.names[node],
                class_=shape,
                rx=4,
            )
        )
        letters = "name" if shape == "device" else "on"
        letters += " tiny" * (wide < _NARROW)
        words.append(
            label(
                text,
                x,
                y + 17,
                class_=letters,
            )
        )
    hangs = any(place[a][1] == place[b][1] == lowest for a, b in done)
    low = lowest + _HIGH + _SAG / 2 * hangs
    hosts = len(fabric.hosts)
    more = (
        f"one of {hosts:,} hosts"
        if hosts > 1
        else f"{len(fabric.gpus)} × {fabric.gpu_model}"
    )
    head = [
        label(f"Inside {fabric.hosts[0]}", 0, top + 41),
        label(more, 0, top + 58, class_="soft"),
    ]
    return Panel(markup(*lines, *shapes, *words, *head), low)


def _boxes(fabric: Fabric, members: list[int], links: list[Link]) -> Boxes:
    """The node whose box each node has: its own, or in a long row that of the first one alike and joined alike."""
    devices = [at for at in members if _row(fabric.nodes.kinds[at]) == _DEVICES]
    if len(devices) <= _MOST:
        return {at: at for at in members}
    around: dict[int, set[int]] = {at: set() for at in members}
    for a, b, _ in links:
        around[a].add(b)
        around[b].add(a)
    first: dict[object, int] = {}
    made = {at: at for at in members}
    for at in devices:
        alike = fabric.nodes.kinds[at], frozenset(around[at])
        made[at] = first.setdefault(alike, at)
    return made


def _row(kind: str) -> int:
    """The row of a kind."""
    return next((at for at, kinds in enumerate(_ROWS) if kind in kinds), _DEVICES)


def _places(
    fabric: Fabric, boxes: Boxes, links: list[Link], top: float
) -> dict[int, tuple[float, float, float]]:
    """Middle, upper edge and width of every box: each row in the order of what it hangs from, spread evenly."""
    rows: list[list[int]] = [[] for _ in _ROWS]
    for node in dict.fromkeys(boxes.values()):
        rows[_row(fabric.nodes.kinds[node])].append(node)
    x: dict[int, float] = {}
    place: dict[int, tuple[float, float, float]] = {}
    y = top
    for row in filter(None, rows):
        middle = {node: _middle(fabric, node, boxes, links, x) for node in row}
        row.sort(key=lambda node: (middle[node], node))
        step = (_RIGHT - _LEFT) / len(row)
        for at, node in enumerate(row):
            x[node] = _LEFT + (at + 0.5) * step
            place[node] = x[node], y, min(_WIDEST, step - 4)
        y += _DOWN
    return place


def _middle(
    fabric: Fabric,
    node: int,
    boxes: Boxes,
    links: list[Link],
    x: dict[int, float],
) -> float:
    """The mean place of what a node is joined to above; in the first row its number, memory beside its processor."""
    ends = [
        boxes[b] if boxes[a] == node else boxes[a]
        for a, b, _ in links
        if node in (boxes[a], boxes[b])
    ]
    known = [x[end] for end in ends if end in x]
    if known:
        return sum(known) / len(known)
    return (
        min(ends) + 0.5
        if ends and fabric.nodes.kinds[node] == "memory"
        else float(node)
    )


def _path(
    a: tuple[float, float, float], b: tuple[float, float, float], lowest: float
) -> str:
    """A line from edge to edge; level within a row of neighbours, else an arc: below the lowest row, above others."""
    (x1, y1, wide), (x2, y2, _) = sorted((a, b), key=lambda one: (one[1], one[0]))
    if y1 != y2:
        return f"M{x1:.1f},{y1 + _HIGH:.1f}L{x2:.1f},{y2:.1f}"
    if x2 - x1 < 2 * wide + 40:
        return f"M{x1:.1f},{y1 + _HIGH / 2:.1f}H{x2:.1f}"
    edge, top = y1, y1 - 26
    if y1 == lowest:  # the longer, the deeper: all of many arcs are told apart
        edge = y1 + _HIGH
        top = edge + _SAG * (x2 - x1) / (_RIGHT - _LEFT)
    return f"M{x1:.1f},{edge:.1f}Q{(x1 + x2) / 2:.1f},{top:.1f} {x2:.1f},{edge:.1f}"
