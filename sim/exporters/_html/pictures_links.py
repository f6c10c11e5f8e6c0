"""Drawings of links: the folded cluster with their use, and the use over the step."""

from __future__ import annotations

from itertools import product
from math import sqrt

from prestep.sim.exporters._html.network import Heat
from prestep.sim.markup import (
    WIDE,
    Markup,
    box,
    drawing,
    element,
    for_each_window,
    label,
    on_phone,
    time_axis,
)
from prestep.sim.units import format_duration, percent

_BOX, _HIGH, _ACROSS, _DOWN = 170.0, 44.0, 260.0, 104.0
_LETTER = 6.7  # width of a letter of a label, about
ROW = 22.0  # height of a row of the heat map
LEAST = 5e-4  # of a link's bandwidth: less is not drawn
_TICKS = (
    (0.0, "start"),
    (0.25, "middle"),
    (0.5, "middle"),
    (0.75, "middle"),
    (1.0, "end"),
)
_SCALE = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)

Point = tuple[float, float]  # x, y
Frame = tuple[float, float, float, float]  # left, top, right, bottom


def strength(use: float) -> str:
    """How strong a use from 0 to 1 is drawn: its square root, so that a link which is hardly used is seen too."""
    return f"{sqrt(min(1.0, max(0.0, use))):.3f}"


def scale() -> Markup:
    """The colours of uses, in words."""
    cells = [element("span", "share of the bandwidth in use:")]
    for use in _SCALE:
        square = element("i", style=f"background:var(--heat);opacity:{strength(use)}")
        cells.append(element("span", square, f"{100 * use:.0f} %"))
    return element("div", *cells, class_="keys")


def cluster(heat: Heat) -> Markup:
    """The folded cluster; every line twice: a faint one, and over it one as strong as the mean use of the step."""
    middles, use = _middles(heat), _mean_use(heat)
    wires, nodes, texts = list[Markup](), list[Markup](), list[Markup]()
    taken = [_box_frame(middle) for middle in middles.values()]
    for number, edge in enumerate(heat.folded.edges):
        if edge.ends[0] == edge.ends[1]:
            continue
        upper, lower = _upper_first(*(middles[end] for end in edge.ends))
        wires += _wire(heat, number, use.get(number, 0.0), upper, lower)
        texts.append(_beside(heat.label(number), upper, lower, taken))
    for node, middle in middles.items():
        nodes += _node(heat, node, middle)
    high = _picture_height(middles)
    name = "The cluster, alike devices drawn once"
    return drawing([*wires, *nodes, *texts], WIDE, high, name)


def _picture_height(middles: dict[int, Point]) -> float:
    return 30 + _HIGH / 2 + max(y for _, y in middles.values())


def _upper_first(a: Point, b: Point) -> tuple[Point, Point]:
    """Two points by height, those of one height from left to right."""
    return (a, b) if (a[1], a[0]) <= (b[1], b[0]) else (b, a)


def _mean_use(heat: Heat) -> dict[int, float]:
    """Mean use over the step of every edge: of its busiest link, in its busier direction."""
    use: dict[int, float] = {}
    for (edge, _), busy in zip(heat.rows, heat.busiest, strict=True):
        use[edge] = max(use.get(edge, 0.0), float(busy.mean()))
    return use


def _wire(
    heat: Heat, edge: int, use: float, upper: Point, lower: Point
) -> list[Markup]:
    """The two lines of an edge; the page's script finds the upper one by its number."""
    ends = {"x1": upper[0], "y1": upper[1], "x2": lower[0], "y2": lower[1]}
    kind = heat.folded.edges[edge].kind
    tooltip = f"{kind}: {heat.label(edge)}, busiest link {percent(use)} used"
    attributes: dict[str, object] = {
        **ends,
        "class_": "wire",
        "stroke_width": 9,
        "stroke_opacity": strength(use),
        "data_edge": edge,
    }
    return [
        element("line", **ends, class_="under", stroke_width=9),
        element("line", element("title", tooltip), **attributes),
    ]


def _node(heat: Heat, node: int, middle: Point) -> list[Markup]:
    """A class of devices: its box and its name."""
    x, y = middle
    left, top, _, _ = _box_frame(middle)
    example = heat.folded.classes[node].example
    return [
        box(left, top, _BOX, _HIGH, example, class_="node", rx=7),
        label(heat.title(node), x, y + 5, class_="node"),
    ]


def _box_frame(middle: Point) -> Frame:
    x, y = middle
    return x - _BOX / 2, y - _HIGH / 2, x + _BOX / 2, y + _HIGH / 2


def _middles(heat: Heat) -> dict[int, Point]:
    """The middle of every class in the picture."""
    columns = [x for x, _ in heat.places.values()]
    across = min(_ACROSS, (WIDE - _BOX) / max(1.0, max(columns) - min(columns)))
    middle = (max(columns) + min(columns)) / 2
    return {
        at: (WIDE / 2 + (x - middle) * across, 30 + y * _DOWN)
        for at, (x, y) in heat.places.items()
    }


def _beside(text: str, upper: Point, lower: Point, taken: list[Frame]) -> Markup:
    """A label near a line, where it covers least of what is `taken`; it takes its place there."""
    frames = _label_frames(_LETTER * len(text), upper, lower)
    best = min(frames, key=lambda frame: _covered(frame, taken))
    taken.append(best)
    left, _, _, bottom = best
    return label(text, left, bottom - 3, class_="soft halo")


def _label_frames(wide: float, upper: Point, lower: Point) -> list[Frame]:
    """Places for a label `wide` beside a line, the preferred first."""
    level = upper[1] == lower[1]
    if level:
        # Above or below the boxes: there is little room between them.
        return [
            _level_frame(wide, _along(upper, lower, part), side)
            for side, part in product((-1.0, 1.0), (0.5, 0.35, 0.65))
        ]
    # Outside of wires that spread.
    sides = (-1.0, 1.0) if lower[0] < upper[0] else (1.0, -1.0)
    return [
        _sloping_frame(wide, _along(upper, lower, part), side)
        for side, part in product(sides, (0.5, 0.4, 0.6, 0.32, 0.68))
    ]


def _along(upper: Point, lower: Point, part: float) -> Point:
    """The point at `part` (0 to 1) of the way."""
    return (
        upper[0] + (lower[0] - upper[0]) * part,
        upper[1] + (lower[1] - upper[1]) * part,
    )


def _level_frame(wide: float, point: Point, side: float) -> Frame:
    x, y = point
    return x - wide / 2, y + side * 34 - 12, x + wide / 2, y + side * 34 + 3


def _sloping_frame(wide: float, point: Point, side: float) -> Frame:
    x, y = point
    left = x + 9 if side > 0 else x - 9 - wide
    return left, y - 8, left + wide, y + 7


def _covered(mine: Frame, taken: list[Frame]) -> float:
    """Area that a frame shares with others, or that lies outside of the picture."""
    shared = sum(
        max(0.0, min(mine[2], other[2]) - max(mine[0], other[0]))
        * max(0.0, min(mine[3], other[3]) - max(mine[1], other[1]))
        for other in taken
    )
    return shared + 20 * (
        max(0.0, -mine[0]) + max(0.0, mine[2] - WIDE) + max(0.0, -mine[1])
    )


def heat_map(heat: Heat, length: float) -> Markup:
    """Rows of links by class and direction, time from left to right; `length` in seconds."""
    return for_each_window(lambda wide: _heat_map(heat, length, wide))


def _heat_map(heat: Heat, length: float, wide: float) -> Markup:
    # On a phone a name stands above its row, and there is no pointer to show more.
    phone = on_phone(wide)
    side, above = (0.0, 18.0) if phone else (230.0, 0.0)
    part = (wide - side) / heat.mean.shape[1]
    drawn: list[Markup] = []
    for row, name in enumerate(heat.names):
        top = row * (ROW + above)
        drawn.append(label(name[:36], 0, top + 15))
        top += above
        drawn += _cells(heat, row, "" if phone else name, length, (side, top, part))
        drawn.append(_row_frame(side, top, wide))
    low = len(heat.rows) * (ROW + above)
    ticks = _TICKS[::2] if phone else _TICKS
    drawn += time_axis(length, side, wide, low + 14, ticks)
    drawn.append(_cursor(low, side, part))
    return drawing(drawn, wide, low + 20, "Use of links over the step")


def _cells(
    heat: Heat, row: int, name: str, length: float, place: tuple[float, float, float]
) -> list[Markup]:
    """The parts of the step in which the links of a row are used.

    `place` is (left, top, width of a part); without a name there is nothing for a pointer.
    """
    parts = heat.mean.shape[1]
    side, top, wide = place
    cells = []
    for part, use in enumerate(heat.busiest[row].tolist()):
        if use <= LEAST:
            continue
        begin = format_duration(part * length / parts)
        mean = heat.mean[row, part]
        told = f"{name}, from {begin}: busiest link {percent(use)}, mean of all {percent(mean)}"
        tooltip = told if name else ""
        shade = strength(use)
        left = side + part * wide
        # A little wider than its part, so that no seam shows between neighbours.
        cells.append(
            box(
                left,
                top + 2,
                wide + 0.3,
                ROW - 4,
                tooltip,
                class_="cell",
                fill_opacity=shade,
            )
        )
    return cells


def _row_frame(side: float, top: float, wide: float) -> Markup:
    return element(
        "rect", x=side, y=top + 2, width=wide - side, height=ROW - 4, class_="frame"
    )


def _cursor(low: float, side: float, part: float) -> Markup:
    """The line at the slider's moment; the page's script moves it by the width of a part."""
    ends: dict[str, object] = {"x1": 0, "x2": 0, "y1": 0, "y2": low}
    place = {"data_left": side, "data_part": part}
    return element("line", **ends, **place, class_="now", visibility="hidden")
