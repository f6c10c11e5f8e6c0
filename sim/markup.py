"""HTML and SVG from Python: elements, tables and small drawings. Text that is put into them is escaped.

Colours are classes of page.css, so that they follow light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from prestep.sim.units import count, format_duration

#: Widths of drawings, in units that a screen shows as about a pixel: for a window, and for a phone.
WIDE, PHONE = 1100.0, 370.0
#: Elements of HTML that have no end.
VOID = ("input",)
_FEW = 4  # columns of a table that a phone has room for


def number(value: float) -> str:
    """`1 024` in a sentence: its thousands stay on one line."""
    return count(value).replace(" ", "\N{NO-BREAK SPACE}")


class Markup(str):
    """Text that is HTML or SVG already. What is added to it and is plain text is escaped.

    Examples
    --------
    >>> element("b", "a < b") + " & so on"
    '<b>a &lt; b</b> &amp; so on'
    """

    __slots__ = ()

    def __add__(self, other: str) -> Markup:
        return markup(self, other)

    def __radd__(self, other: str) -> Markup:
        return markup(other, self)


def markup(*parts: str) -> Markup:
    """Parts one after the other; those that are plain text are escaped."""
    return Markup(
        "".join(
            part if isinstance(part, Markup) else escape(part) for part in parts if part
        )
    )


def element(tag: str, /, *parts: str, **attributes: object) -> Markup:
    """`<tag a="1">parts</tag>`: what is no markup is escaped; `_` in names of attributes is `-`."""
    written = "".join(
        f' {k.rstrip("_").replace("_", "-")}="{escape(_plain(v))}"'
        for k, v in attributes.items()
    )
    end = "" if tag in VOID else f"</{tag}>"
    return Markup(f"<{tag}{written}>{markup(*parts)}{end}")


def _plain(value: object) -> str:
    return (
        f"{value:.2f}".rstrip("0").rstrip(".")
        if isinstance(value, float)
        else str(value)
    )


def label(text: str, x: float, y: float, **attributes: object) -> Markup:
    return element("text", text, x=x, y=y, **attributes)


def paragraph(*parts: str) -> Markup:
    return element("p", *parts)


def horizontal(y: float, left: float, right: float, **attributes: object) -> Markup:
    """A level line."""
    return element("line", x1=left, x2=right, y1=y, y2=y, **attributes)


def vertical(x: float, top: float, bottom: float, **attributes: object) -> Markup:
    """An upright line."""
    return element("line", x1=x, x2=x, y1=top, y2=bottom, **attributes)


def fill(colour: str) -> str:
    """The style that fills a shape with a colour of page.css."""
    return f"fill:var(--{colour})"


def box(
    x: float, y: float, wide: float, high: float, title: str = "", **attributes: object
) -> Markup:
    """A rectangle; `title` is what a pointer over it shows."""
    tooltip = element("title", title) if title else ""
    return element(
        "rect", tooltip, x=x, y=y, width=max(wide, 0.0), height=high, **attributes
    )


def drawing(
    parts: Iterable[str], wide: float, high: float, name: str, **attributes: object
) -> Markup:
    """An SVG that scales with the page; `name` is its text for those who do not see it.

    Where the window is too narrow for its letters it scrolls.
    """
    view = f"0 0 {_plain(float(wide))} {_plain(float(high))}"
    picture = element(
        "svg", *parts, viewBox=view, role="img", aria_label=name, **attributes
    )
    return _scrolling(name, picture)


def _scrolling(name: str, *parts: str) -> Markup:
    return element(
        "div", *parts, class_="scroll", tabindex=0, role="group", aria_label=name
    )


def for_each_window(draw: Callable[[float], str]) -> Markup:
    """A drawing made twice, for a window and for a phone; the page's style shows one of them."""
    window = element("div", draw(WIDE), class_="window")
    return window + element("div", draw(PHONE), class_="phone")


def on_phone(wide: float) -> bool:
    """Whether a drawing is so narrow that names stand above their rows, not beside them."""
    return wide < WIDE


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: int = 1,
    caption: str = "",
) -> Markup:
    """A table whose first `texts` columns are words and the others numbers."""

    wide = len(heads) > _FEW

    def line(tag: str, cells: Sequence[str], **scope: str) -> Markup:
        made = []
        for at, cell in enumerate(cells):
            attributes = dict(scope) if at < texts else {**scope, "class_": "n"}
            if wide and tag == "td":  # a phone writes it before the cell
                attributes["data_head"] = heads[at]
            made.append(element(tag, cell, **attributes))
        return element("tr", *made)

    title = [element("caption", caption)] if caption else []
    head = element("thead", line("th", heads, scope="col"))
    body = element("tbody", *(line("td", row) for row in rows))
    many = {"class_": "many"} if wide else {}
    made = element("table", *title, head, body, **many)
    return _scrolling(caption or heads[0] or "table", made)


def time_axis(
    length: float,
    left: float,
    right: float,
    y: float,
    ticks: Iterable[tuple[float, str]],
) -> list[Markup]:
    """Times under a picture; `length` in seconds, a tick is (part of it, side of the text that lies there)."""
    return [
        label(
            format_duration(part * length),
            left + part * (right - left),
            y,
            class_="soft",
            text_anchor=anchor,
        )
        for part, anchor in ticks
    ]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten that enclose [low, high]."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]
