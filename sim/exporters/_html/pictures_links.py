"""Drawings of links: the cluster with their use, and the use over the step."""

from __future__ import annotations

from functools import partial
from math import sqrt

from prestep.sim import markup
from prestep.sim.exporters._html.network import Heat
from prestep.sim.units import format_duration, percent
from prestep.topologies.show import drawing as fabric_drawing

FULL = 0.97  # of its bandwidth: a link in use so far holds transfers back
SEEN = (
    0.7  # use as which a full link is drawn at least: its mean over the step may be low
)
LONG = 0.05  # of a step: a link that is full for longer is red
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


def strength(use: float) -> str:
    """How strong a use from 0 to 1 is drawn: its square root, so that a link which is hardly used is seen too."""
    return f"{sqrt(min(1.0, max(0.0, use))):.3f}"


def scale() -> markup.Markup:
    """The colours of uses, in words."""
    cells = [markup.element("span", "share of the bandwidth in use:")]
    for use in _SCALE:
        square = markup.element(
            "i", style=f"background:var(--heat);opacity:{strength(use)}"
        )
        cells.append(markup.element("span", square, f"{100 * use:.0f} %"))
    red = markup.element("i", style="background:var(--bad)")
    cells.append(markup.element("span", red, "full for a while"))
    return markup.element("div", *cells, class_="keys")


def cluster(heat: Heat, with_host: bool = True, moving: bool = True) -> markup.Markup:
    """Draws the cluster; the colour of a line shows the use of the busiest link that it stands for, red if full.

    ``moving``: the page's slider shows other moments on it.
    """
    use = _over_the_step(heat)
    over = partial(_used, heat, use, moving)
    return fabric_drawing.draw(heat.fabric, over, with_host)


def _over_the_step(heat: Heat) -> dict[int, tuple[float, float]]:
    """Mean use and share of the step in which it is full, of every edge: its busiest link, in its busier direction."""
    use: dict[int, tuple[float, float]] = {}
    for (edge, _), busy in zip(heat.rows, heat.busiest, strict=True):
        mean, full = use.get(edge, (0.0, 0.0))
        now = float((busy >= FULL).mean())
        use[edge] = max(mean, float(busy.mean())), max(full, now)
    return use


def _used(
    heat: Heat, use: dict[int, tuple[float, float]], moving: bool, edge: int, path: str
) -> list[markup.Markup]:
    """What lies over a cable: its use; the page's script finds it by its edge."""
    if edge not in use:
        return []
    mean, full = use[edge]
    kind = heat.folded.edges[edge].kind
    told = f"{kind}: {heat.label(edge)}, busiest link {percent(mean)} used"
    told += f", full for {percent(full)} of the step" if full else ""
    attributes: dict[str, object] = {"data_edge": edge} if moving else {}
    line = markup.element(
        "path",
        markup.element("title", told),
        d=path,
        class_="use full" if full >= LONG else "use",
        stroke_width=3.0,
        stroke_opacity=strength(max(mean, SEEN) if full >= LONG else mean),
        **attributes,
    )
    return [line]


def heat_map(heat: Heat, length: float) -> markup.Markup:
    """Rows of links by class and direction, time from left to right; `length` in seconds."""
    return markup.for_each_window(lambda wide: _heat_map(heat, length, wide))


def _heat_map(heat: Heat, length: float, wide: float) -> markup.Markup:
    # On a phone a name stands above its row, and there is no pointer to show more.
    phone = markup.on_phone(wide)
    side, above = (0.0, 18.0) if phone else (230.0, 0.0)
    part = (wide - side) / heat.mean.shape[1]
    drawn: list[markup.Markup] = []
    for row, name in enumerate(heat.names):
        top = row * (ROW + above)
        drawn.append(markup.label(name[:36], 0, top + 15))
        top += above
        drawn += _cells(heat, row, "" if phone else name, length, (side, top, part))
        drawn.append(_row_frame(side, top, wide))
    low = len(heat.rows) * (ROW + above)
    ticks = _TICKS[::2] if phone else _TICKS
    drawn += markup.time_axis(length, side, wide, low + 14, ticks)
    drawn.append(_cursor(low, side, part))
    return markup.drawing(drawn, wide, low + 20, "Use of links over the step")


def _cells(
    heat: Heat, row: int, name: str, length: float, place: tuple[float, float, float]
) -> list[markup.Markup]:
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
            markup.box(
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


def _row_frame(side: float, top: float, wide: float) -> markup.Markup:
    return markup.element(
        "rect", x=side, y=top + 2, width=wide - side, height=ROW - 4, class_="frame"
    )


def _cursor(low: float, side: float, part: float) -> markup.Markup:
    """The line at the slider's moment; the page's script moves it by the width of a part."""
    ends: dict[str, object] = {"x1": 0, "x2": 0, "y1": 0, "y2": low}
    place = {"data_left": side, "data_part": part}
    return markup.element("line", **ends, **place, class_="now", visibility="hidden")
