"""The drawing of a cluster: tiers of switches above groups of hosts, with cables between them, and a host's inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from prestep.sim import files
from prestep.sim.markup import Markup, box, drawing, label
from prestep.topologies.core.kinds import TIERS
from prestep.topologies.core.links import Ints
from prestep.topologies.fabric import Fabric
from prestep.topologies.show import inside, labels, parts
from prestep.topologies.show.folding import Edge, Folded, class_of, fold
from prestep.topologies.show.summary import oversubscription, summary

WIDTH, MARGIN = 1100.0, 180.0  # of the drawing, and of its left column of words
_SWITCH, _DOWN = (52.0, 26.0), 92.0  # a switch; from row to row
_PORT, _BETWEEN = 14.0, 16.0  # a port of a host with the gap beside it; between parts
_HOST = 62.0  # height of a host
_ARCS = 34.0  # room above a row for cables among its switches

Point = tuple[float, float]
#: What a caller draws over cables of a folded edge: (edge, path) -> elements; nothing by default.
Over = Callable[[int, str], Sequence[Markup]]


@dataclass
class Sheet:
    """What has been drawn: shapes, words, and where each node's cables end (its upper and its lower point)."""

    fabric: Fabric
    shapes: list[Markup] = field(default_factory=list)
    words: list[Markup] = field(default_factory=list)
    ends: dict[int, tuple[Point, Point]] = field(default_factory=dict)
    rows: dict[str, float] = field(default_factory=dict)


def style() -> str:
    """The style of drawings, for a page that has some."""
    return files.read_text(Path(__file__).with_name("fabric.css"))


def write(fabric: Fabric, path: Path) -> None:
    """Writes a drawing as an SVG of its own."""
    scheme = ":root { color-scheme: light dark; }"  # the ground follows the ink
    words = f"<style>{scheme}\n{style()}</style>"
    text = draw(fabric, titled=True).replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1
    )
    begin, end = text.index("<svg "), text.rindex("</svg>") + len("</svg>")
    head, _, body = text[begin:end].partition(">")
    files.write_text(path, f"{head}>{words}{body}\n")


def draw(
    fabric: Fabric,
    over: Over | None = None,
    with_host: bool = True,
    titled: bool = False,
) -> Markup:
    """The cluster as an SVG element: its network, and the inside of a host (of a lone host always).

    Parameters
    ----------
    over
        What is drawn over the cables of each edge of the folded cluster, such as how much they are used.
    titled
        Whether its name and its numbers stand above it.
    """
    folded, classes = fold(fabric), class_of(fabric)
    edges = {(*edge.ends, edge.kind): at for at, edge in enumerate(folded.edges)}
    edge_of = partial(_edge_of, fabric, classes, edges)
    whole, sheet = parts.parts_of(fabric), Sheet(fabric)
    high, wide = (_title(sheet) if titled else 8.0), WIDTH
    if len(fabric.hosts) > 1:
        high, wide = _network(sheet, whole, high)
    cables = list(_cables(sheet, folded, edge_of, over))
    if with_host or len(fabric.hosts) <= 1:
        panel = inside.host(fabric, folded, edge_of, over, high + 8)
        cables, high = [*cables, panel.drawn], panel.low
    name = f"The cluster {fabric.name}: {len(fabric.gpus)} GPUs in {len(fabric.hosts)} hosts"
    used = "fabric used" if over else "fabric"
    return drawing(
        [*cables, *sheet.shapes, *sheet.words], wide, high + 8, name, class_=used
    )


def _title(sheet: Sheet) -> float:
    """The cluster's name, size and numbers; returns where they end."""
    fabric = sheet.fabric
    gpus, hosts = len(fabric.gpus), _counted(fabric, "host")
    name = f"{fabric.name}: {gpus:,} GPUs ({fabric.gpu_model}) in {hosts}"
    told = "; ".join(f"{what} {much}" for what, much in summary(fabric))
    sheet.words += [
        label(name, 0, 18, class_="title"),
        label(told, 0, 38, class_="soft"),
    ]
    return 62.0


def _edge_of(
    fabric: Fabric, classes: Ints, edges: dict[tuple[int, int, str], int], row: int
) -> int:
    """The folded edge of a link."""
    src, dst = fabric.ends
    a, b = sorted((int(classes[src[row]]), int(classes[dst[row]])))
    return edges[a, b, str(fabric.links.kind[row])]


def _network(sheet: Sheet, whole: parts.Part, top: float) -> Point:
    """Draws the tiers and the hosts below them; returns where they end, and how wide the drawing is."""
    widths = parts.MOST_PARTS[min(3, whole.levels)]
    wanted = _width(sheet.fabric, whole, widths)
    left = MARGIN + max(0.0, (WIDTH - MARGIN - wanted) / 2)
    room = _ARCS * (not whole.kind and len(whole.parts) > 1)
    low = _part(sheet, whole, widths, (left, top + 4 + room), wanted)
    planes = len(parts.planes_of(sheet.fabric))
    narrow = {
        tier.kind: tier.most
        for tier in oversubscription(sheet.fabric)
        if tier.most > 1.01
    }
    for kind, y in sheet.rows.items():
        sheet.words.append(label(_counted(sheet.fabric, kind), 0, y))
        below = [f"oversubscribed {narrow[kind]:.3g}:1"] if kind in narrow else []
        if planes > 1 and kind in TIERS[1:]:
            below.insert(0, f"in {planes} planes; one is drawn")
        for at, said in enumerate(below):
            sheet.words.append(label(said, 0, y + 20 + 14 * at, class_="soft"))
    return low, max(WIDTH, left + wanted + 10)


def _counted(fabric: Fabric, kind: str) -> str:
    """`8 leaf switches`; `32 hosts`."""
    if kind == "host":
        return f"{len(fabric.hosts):,} host{'s' * (len(fabric.hosts) != 1)}"
    host_at = fabric.nodes.host_at
    number = sum(
        k == kind and h < 0
        for k, h in zip(fabric.nodes.kinds, host_at.tolist(), strict=True)
    )
    own = kind in ("network", "nvswitch", "switch")
    name = kind if own else f"{kind} switch"
    return f"{number:,} {name}{'' if number == 1 else 'es'}".replace(
        "networkes", "networks"
    )


def _width(fabric: Fabric, part: parts.Part, most: Sequence[int]) -> float:
    """The width that a part needs."""
    if part.kind == "host":
        return max(
            96.0,
            16.0 + _PORT * max(len(_ports(fabric, part)), len(_gpus(fabric, part))),
        )
    own = len(parts.some(part.switches)) * (_SWITCH[0] + 6)
    below = [
        _width(fabric, one.item, most[_deeper(part) :])
        for one in parts.shown(fabric, part, most[0])
    ]
    return max(own, sum(below) + _BETWEEN * (len(below) + 1))


def _deeper(part: parts.Part) -> int:
    """Whether a part uses up a level of the parts that are shown."""
    return int(len(part.parts) > 1)


def _part(
    sheet: Sheet, part: parts.Part, most: Sequence[int], place: Point, wide: float
) -> float:
    """Draws a part at its upper left corner, in so much width; returns where it ends."""
    left, top = place
    if part.kind == "host":
        return _host(sheet, part, place, wide)
    under = (
        part.kind == "nvswitch"
    )  # NVLink switches of a rack stand below its hosts: cables of the network go up
    if _joined(sheet.fabric, part.switches):
        top += _ARCS
        place = left, top
    below = top if under or not len(part.switches) else top + _SWITCH[1] + _DOWN
    items = parts.shown(sheet.fabric, part, most[0])
    widths = [_width(sheet.fabric, one.item, most[_deeper(part) :]) for one in items]
    gap = (wide - sum(widths)) / (len(items) + 1) if items else 0.0
    x, low, captions = left + gap, below, False
    own = _name(sheet.fabric, part)
    for one, needed in zip(items, widths, strict=True):
        framed = one.item.kind != "host" and len(part.parts) > 1
        inner = below + (10 if framed else 0)
        end = _part(sheet, one.item, most[_deeper(part) :], (x, inner), needed)
        if framed:
            end += 10
            sheet.shapes.insert(
                0, box(x - 6, below, needed + 12, end - below, class_="group", rx=8)
            )
        name = _name(sheet.fabric, one.item) if framed else ""
        said = [name] if name and name != own else []
        if one.stands_for > 1:
            said.append(f"… {one.stands_for - 1:,} more like it")
        if said:
            captions = True
            words = label(" ".join(said), x, end + 14, class_="soft halo")
            sheet.words.append(words)
        x, low = x + needed + gap, max(low, end)
    low += 20 * captions
    if under:
        _switches(sheet, part, (left, low + 40), wide)
        return low + 40 + _SWITCH[1]
    _switches(sheet, part, place, wide)
    return low


def _joined(fabric: Fabric, switches: Ints) -> bool:
    """Whether cables join switches of a row."""
    src, dst = fabric.ends
    own = np.zeros(len(fabric.nodes), dtype=bool)
    own[switches] = True
    return bool((own[src] & own[dst]).any())


def _name(fabric: Fabric, part: parts.Part) -> str:
    """The rack, pod or group of a part: what its switches' names have before the last slash."""
    names = {fabric.nodes.names[at].rpartition("/")[0] for at in part.switches.tolist()}
    return names.pop() if len(names) == 1 else ""


def _switches(sheet: Sheet, part: parts.Part, place: Point, wide: float) -> None:
    """A row of switches, spread over a width; a gap stands for those that are left out."""
    nodes, (left, top) = parts.some(part.switches), place
    if not nodes:
        return
    step = wide / max(1, len(nodes))
    sheet.rows.setdefault(part.kind, top + 17)
    for at, node in enumerate(nodes):
        x = left + (at + 0.5) * step
        if node < 0:
            sheet.words.append(
                label(
                    f"… {len(part.switches) - len(nodes) + 1} …",
                    x,
                    top + 17,
                    class_="name",
                )
            )
            continue
        name = sheet.fabric.nodes.names[node]
        sheet.shapes.append(
            box(x - _SWITCH[0] / 2, top, *_SWITCH, name, class_="switch", rx=4)
        )
        sheet.words.append(label(labels.short(name, 7), x, top + 17, class_="on"))
        sheet.ends[node] = (x, top), (x, top + _SWITCH[1])


def _of_kind(fabric: Fabric, part: parts.Part, kind: str) -> list[int]:
    return [at for at in part.members.tolist() if fabric.nodes.kinds[at] == kind]


def _ports(fabric: Fabric, part: parts.Part) -> list[int]:
    """The NICs of a host that are drawn."""
    return _of_kind(fabric, part, "nic")[: parts.MOST_SWITCHES]


def _gpus(fabric: Fabric, part: parts.Part) -> list[int]:
    """The GPUs of a host that are drawn."""
    return _of_kind(fabric, part, "gpu")[: parts.MOST_SWITCHES]


def _host(sheet: Sheet, part: parts.Part, place: Point, wide: float) -> float:
    """A host: NICs on its upper edge, GPUs inside, its name."""
    fabric, (left, top) = sheet.fabric, place
    host = (
        fabric.nodes.hosts[int(part.members[0])]
        or fabric.nodes.names[int(part.members[0])]
    )
    gpus = len(_of_kind(fabric, part, "gpu"))
    sheet.rows.setdefault("host", top + 30)
    sheet.shapes.append(box(left, top, wide, _HOST, host, class_="host", rx=6))
    for kind, nodes, y, high in (
        ("nic", _ports(fabric, part), top - 4, 8.0),
        ("gpu", _gpus(fabric, part), top + 16, 18.0),
    ):
        start = left + (wide - _PORT * len(nodes)) / 2
        for at, node in enumerate(nodes):
            x = start + _PORT * at
            sheet.shapes.append(
                box(
                    x + 2,
                    y,
                    _PORT - 4,
                    high,
                    fabric.nodes.names[node],
                    class_=kind,
                    rx=2,
                )
            )
            sheet.ends[node] = (x + _PORT / 2, y), (x + _PORT / 2, y + high)
    what = f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else "no GPU"
    sheet.words.append(
        label(
            f"{labels.short(host, 14)}: {what}",
            left + wide / 2,
            top + 52,
            class_="name",
        )
    )
    return top + _HOST


def _cables(
    sheet: Sheet, folded: Folded, edge_of: Callable[[int], int], over: Over | None
) -> Iterator[Markup]:
    """Cables between nodes that are drawn, once for both directions; words of each kind in the left column."""
    fabric, told = sheet.fabric, dict[str, float]()
    src, dst = fabric.ends
    drawn = np.zeros(len(fabric.nodes), dtype=bool)
    drawn[list(sheet.ends)] = True
    for row in np.flatnonzero(drawn[src] & drawn[dst] & (src < dst)).tolist():
        a, b = int(src[row]), int(dst[row])
        if fabric.nodes.hosts[a] and fabric.nodes.hosts[a] == fabric.nodes.hosts[b]:
            continue
        edge = edge_of(row)
        path, middle = _way(sheet.ends[a], sheet.ends[b])
        told.setdefault(_words(folded, edge), middle)
        yield labels.cable(folded, edge, path)
        yield from over(edge, path) if over else ()
    last = 0.0
    for words, y in sorted(told.items(), key=lambda item: item[1]):
        last = max(y, last + 16)
        sheet.words.append(label(words, 0, last, class_="soft"))


def _words(folded: Folded, edge: int) -> str:
    """What the left column says of a cable: all of its kind between two tiers, or among the switches of one."""
    one, ends = folded.edges[edge], _ends(folded, folded.edges[edge])
    alike = [e for e in folded.edges if (e.kind, _ends(folded, e)) == (one.kind, ends)]
    among = f"{one.kind}: " if ends[0] == ends[1] else ""
    return f"{among}{labels.cables(folded, *alike)}"


def _ends(folded: Folded, edge: Edge) -> list[str]:
    return sorted(folded.classes[at].kind for at in edge.ends)


def _way(a: tuple[Point, Point], b: tuple[Point, Point]) -> tuple[str, float]:
    """A line from the lower end of what is above to the upper end of what is below; an arc within a row."""
    upper, lower = sorted((a, b), key=lambda ends: ends[0][1])
    if abs(upper[0][1] - lower[0][1]) < 1:
        (x1, y), (x2, _) = upper[0], lower[0]
        lift = 2 * min(_ARCS - 8, 6 + abs(x2 - x1) / 16)  # a curve rises half as high
        return (
            f"M{x1:.1f},{y:.1f}Q{(x1 + x2) / 2:.1f},{y - lift:.1f} {x2:.1f},{y:.1f}",
            y - lift / 2,
        )
    (x1, y1), (x2, y2) = upper[1], lower[0]
    return f"M{x1:.1f},{y1:.1f}L{x2:.1f},{y2:.1f}", (y1 + y2) / 2 + 4
