"""Drawings of links: the folded cluster with their use, and the use over the step."""

from __future__ import annotations

from itertools import product
from math import sqrt

from sim.exporters._html.network import Heat
from sim.exporters._html.svg import box, drawing, element, label
from sim.units import format_duration

_WIDE, _BOX, _HIGH, _ACROSS, _DOWN = 1100.0, 170.0, 44.0, 260.0, 104.0
_LETTER = 6.7  # width of a letter of a label, about
#: Of the heat map: width of its names, height of a row.
SIDE, ROW = 230.0, 22.0
LEAST = 5e-4  # of a link's bandwidth: less is not drawn
_SCALE = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)

Frame = tuple[float, float, float, float]  # left, top, right, bottom


def strength(use: float) -> str:
    """How strong a use from 0 to 1 is drawn: its square root, so that a link which is hardly used is seen too."""
    return f"{sqrt(min(1.0, max(0.0, use))):.3f}"


def scale() -> str:
    """The colours of uses, in words."""
    cells = "".join(
        f'<span><i style="background:var(--heat);opacity:{strength(use)}"></i>{use:.0%}</span>'.replace(
            "%<", " %<"
        )
        for use in _SCALE
    )
    return f'<div class="keys"><span>share of the bandwidth in use:</span>{cells}</div>'


def cluster(heat: Heat) -> str:
    """The folded cluster; every line twice: a faint one, and over it one as strong as the mean use of the step."""
    place = _places(heat)
    use: dict[int, float] = {}
    for (at, _), busy in zip(heat.rows, heat.busiest, strict=True):
        use[at] = max(use.get(at, 0.0), float(busy.mean()))
    wires, texts = [], []
    taken = [
        (x - _BOX / 2, y - _HIGH / 2, x + _BOX / 2, y + _HIGH / 2)
        for x, y in place.values()
    ]
    for number, edge in enumerate(heat.folded.edges):
        a, b = edge.ends
        if a == b:
            continue
        first, last = sorted((place[a], place[b]), key=lambda p: (p[1], p[0]))
        ends: dict[str, object] = {
            "x1": first[0],
            "y1": first[1],
            "x2": last[0],
            "y2": last[1],
        }
        wires.append(element("line", **ends, class_="under", stroke_width=9))
        told = element(
            "title",
            f"{edge.kind}: {heat.label(number)}, busiest link {use.get(number, 0.0):.1%} used",
        )
        shown = {
            "stroke_width": 9,
            "stroke_opacity": strength(use.get(number, 0.0)),
            "data_edge": number,
        }
        wires.append(element("line", told, **ends, class_="wire", **shown))
        texts.append(_beside(heat.label(number), first, last, taken))
    nodes = []
    for at, (x, y) in place.items():
        example = heat.folded.classes[at].example
        nodes.append(
            box(x - _BOX / 2, y - _HIGH / 2, _BOX, _HIGH, example, class_="node", rx=7)
        )
        nodes.append(label(heat.told(at), x, y + 5, class_="node"))
    high = 30 + _HIGH / 2 + max(y for _, y in place.values())
    return drawing(
        [*wires, *nodes, *texts], _WIDE, high, "The cluster, alike devices drawn once"
    )


def _places(heat: Heat) -> dict[int, tuple[float, float]]:
    """The middle of every class in the picture."""
    columns = [x for x, _ in heat.places.values()]
    across = min(_ACROSS, (_WIDE - _BOX) / max(1.0, max(columns) - min(columns)))
    middle = (max(columns) + min(columns)) / 2
    return {
        at: (_WIDE / 2 + (x - middle) * across, 30 + y * _DOWN)
        for at, (x, y) in heat.places.items()
    }


def _beside(
    text: str, first: tuple[float, float], last: tuple[float, float], taken: list[Frame]
) -> str:
    """A label near a line, where it covers least of what is `taken`; it takes its place there."""
    wide = _LETTER * len(text)
    level = first[1] == last[1]

    def frame(part: float, side: float) -> Frame:
        x, y = (first[at] + (last[at] - first[at]) * part for at in (0, 1))
        if level:  # above or below the boxes: there is little room between them
            return x - wide / 2, y + side * 34 - 12, x + wide / 2, y + side * 34 + 3
        left = x + 9 if side > 0 else x - 9 - wide
        return left, y - 8, left + wide, y + 7

    parts = (0.5, 0.35, 0.65) if level else (0.5, 0.4, 0.6, 0.32, 0.68)
    sides = (
        (-1.0, 1.0) if level or last[0] < first[0] else (1.0, -1.0)
    )  # outside of wires that spread
    frames = [frame(part, side) for side, part in product(sides, parts)]
    best = min(frames, key=lambda mine: _covered(mine, taken))
    taken.append(best)
    return label(text, best[0], best[3] - 3, class_="soft halo")


def _covered(mine: Frame, taken: list[Frame]) -> float:
    """Area that a frame shares with others, or that lies outside of the picture."""
    shared = sum(
        max(0.0, min(mine[2], other[2]) - max(mine[0], other[0]))
        * max(0.0, min(mine[3], other[3]) - max(mine[1], other[1]))
        for other in taken
    )
    return shared + 20 * (
        max(0.0, -mine[0]) + max(0.0, mine[2] - _WIDE) + max(0.0, -mine[1])
    )


def heat_map(heat: Heat, length: float) -> str:
    """Rows of links by class and direction, time from left to right; `length` in seconds."""
    parts = heat.mean.shape[1]
    wide = (_WIDE - SIDE) / parts
    drawn = []
    for row, name in enumerate(heat.names):
        y = row * ROW
        drawn.append(label(name[:36], 0, y + 15))
        for at, use in enumerate(heat.busiest[row].tolist()):
            if use > LEAST:
                told = f"{name}, from {format_duration(at * length / parts)}: busiest link {use:.1%}"
                told += f", mean of all {heat.mean[row, at]:.1%}"
                x = SIDE + at * wide
                drawn.append(
                    box(
                        x,
                        y + 2,
                        wide + 0.3,
                        ROW - 4,
                        told,
                        class_="cell",
                        fill_opacity=strength(use),
                    )
                )
        drawn.append(
            element(
                "rect",
                x=SIDE,
                y=y + 2,
                width=_WIDE - SIDE,
                height=ROW - 4,
                class_="frame",
            )
        )
    low = len(heat.rows) * ROW
    for part, anchor in (
        (0.0, "start"),
        (0.25, "middle"),
        (0.5, "middle"),
        (0.75, "middle"),
        (1.0, "end"),
    ):
        x = SIDE + part * (_WIDE - SIDE)
        drawn.append(
            label(
                format_duration(part * length),
                x,
                low + 14,
                class_="soft",
                text_anchor=anchor,
            )
        )
    drawn.append(
        element(
            "line",
            id="cursor",
            x1=0,
            x2=0,
            y1=0,
            y2=low,
            class_="now",
            visibility="hidden",
        )
    )
    return drawing(drawn, _WIDE, low + 20, "Use of links over the step")
