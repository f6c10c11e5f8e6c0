"""The report's bars: shares of a whole, and the tornado of what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prestep.sim import markup
from prestep.sim.units import LEAST_DIFFERENCE, format_difference


@dataclass(frozen=True)
class _Rows:
    """Where the tornado's bars lie: beside the names of their elements, on a phone under them."""

    wide: float

    @property
    def left(self) -> float:
        return 0.0 if markup.on_phone(self.wide) else 290.0

    @property
    def middle(self) -> float:
        return (self.left + self.wide) / 2

    @property
    def longest(self) -> float:
        """Of a bar: beside it there is room for the words."""
        return (self.wide - self.left) / 2 - 130

    @property
    def above(self) -> float:
        """What the name of an element takes above its bar."""
        return 20.0 if markup.on_phone(self.wide) else 0.0


def stacked(
    parts: Sequence[tuple[str, float, str, str]], name: str, whole: float | None = None
) -> markup.Markup:
    """One bar of parts (what, size, class of colour, text for the pointer); `whole` is its full length.

    It is no SVG, so that it keeps its height and its letters in a narrow window. A name that has no room is not shown.
    """
    total = whole or sum(size for _, size, _, _ in parts) or 1.0
    drawn = []
    for what, size, colour, text in parts:
        share = size / total
        letters = {"class_": _LETTERS[colour]} if colour in _LETTERS else {}
        style = f"width:{100 * share:.3f}%;background:var(--{colour})"
        drawn.append(
            markup.element(
                "span", what, **letters, style=style, title=f"{what}: {text}"
            )
        )
    listed = ", ".join(f"{what} {text}" for what, _, _, text in parts)
    said = f"{name}: {listed}"
    return markup.element("div", *drawn, class_="stack", role="img", aria_label=said)


# Letters that can be read on a colour in both themes, where black ones cannot: white ones, the page's, or its ground's.
_LETTERS = {
    "backward": "white",
    **dict.fromkeys(("bubble", "wait", "idle"), "ink"),
    **dict.fromkeys(("optimizer", "pp", "cp", "good", "bad"), "ground"),
}


def tornado(table: dict[str, Any], most: int = 24) -> markup.Markup:
    """Bars of `prestep.sim.studies.tornado.tornado`: to the left faster, to the right slower."""
    return markup.for_each_window(lambda wide: _tornado(table, most, _Rows(wide)))


def _tornado(table: dict[str, Any], most: int, place: _Rows) -> markup.Markup:
    rows = table["elements"][:most]
    changes = [change for row in rows for change in row["changes"]]
    longest = max((abs(change["difference"]) for change in changes), default=0.0)
    scale = place.longest / (longest or 1.0)
    drawn = [
        markup.label("faster", place.middle - 12, 12, class_="soft", text_anchor="end"),
        markup.label("slower", place.middle + 12, 12, class_="soft"),
    ]
    step = 26.0 + place.above
    high = 26.0 + step * len(rows)
    drawn.append(markup.vertical(place.middle, 16, high, class_="axis"))
    for at, row in enumerate(rows):
        name = row.get("label") or row["element"]
        drawn += _element(name, row["changes"], 22.0 + at * step, scale, place)
    return markup.drawing(drawn, place.wide, high + 4, "What each element changes")


def _element(
    name: str, changes: list[dict[str, Any]], top: float, scale: float, place: _Rows
) -> list[markup.Markup]:
    """The row of an element: what makes the step faster to the left, the others to the right."""
    faster = [change for change in changes if change["difference"] < 0]
    slower = [change for change in changes if not change["difference"] < 0]
    bar = top + place.above
    return [
        markup.label(name[:40], 0, top + 15, class_="halo"),
        *_side(name, faster, bar, -scale, place.middle),
        *_side(name, slower, bar, scale, place.middle),
    ]


def _side(
    name: str, changes: list[dict[str, Any]], top: float, scale: float, middle: float
) -> list[markup.Markup]:
    """Bars of one element to one side of the middle, the longest below, and after them what they are.

    `scale` is a second's length in the picture, negative to the left.
    """
    ordered = sorted(changes, key=lambda change: -abs(change["difference"]))
    drawn = [_bar(name, change, top, scale, middle) for change in ordered]
    visible = [
        change for change in ordered if abs(change["difference"]) > LEAST_DIFFERENCE
    ]
    if not visible:
        return drawn
    text = ", ".join(
        f"{change['factor']:g}x {format_difference(change['difference'])}"
        for change in visible
    )
    end = middle + scale * abs(visible[0]["difference"])
    anchor, gap = ("end", -6) if scale < 0 else ("start", 6)
    drawn.append(
        markup.label(text, end + gap, top + 15, class_="soft", text_anchor=anchor)
    )
    return drawn


def _bar(
    name: str, change: dict[str, Any], top: float, scale: float, middle: float
) -> markup.Markup:
    wide = abs(scale * change["difference"])
    tooltip = (
        f"{name} at {change['factor']:g}x: {format_difference(change['difference'])}"
    )
    colour = "good" if scale < 0 else "bad"
    left = middle - wide if scale < 0 else middle
    return markup.box(
        left, top, wide, 20, tooltip, style=markup.fill(colour), fill_opacity=0.75
    )
