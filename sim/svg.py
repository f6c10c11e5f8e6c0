"""Small drawings as SVG text. Colours are classes of page.css, so that they follow light, dark and print."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from prestep.sim.units import count, format_duration

#: Widths of drawings, in units that a screen shows as about a pixel: for a window, and for a phone.
WIDE, PHONE = 1100.0, 370.0
_FEW = 5  # columns of a table that a phone has room for


def number(value: float) -> str:
    """`1 024` in a sentence: its thousands stay on one line."""
    return count(value).replace(" ", "\N{NO-BREAK SPACE}")


def element(tag: str, text: str = "", /, **attributes: object) -> str:
    """`<tag a="1">text</tag>`; `text` is markup already, attributes are escaped, `_` in their names is `-`."""
    written = "".join(
        f' {k.rstrip("_").replace("_", "-")}="{escape(_plain(v))}"'
        for k, v in attributes.items()
    )
    return f"<{tag}{written}>{text}</{tag}>"


def _plain(value: object) -> str:
    return (
        f"{value:.2f}".rstrip("0").rstrip(".")
        if isinstance(value, float)
        else str(value)
    )


def label(text: str, x: float, y: float, **attributes: object) -> str:
    return element("text", escape(text), x=x, y=y, **attributes)


def horizontal(y: float, left: float, right: float, **attributes: object) -> str:
    """A level line."""
    return element("line", x1=left, x2=right, y1=y, y2=y, **attributes)


def vertical(x: float, top: float, bottom: float, **attributes: object) -> str:
    """An upright line."""
    return element("line", x1=x, x2=x, y1=top, y2=bottom, **attributes)


def fill(colour: str) -> str:
    """The style that fills a shape with a colour of page.css."""
    return f"fill:var(--{colour})"


def box(
    x: float, y: float, wide: float, high: float, title: str = "", **attributes: object
) -> str:
    """A rectangle; `title` is what a pointer over it shows."""
    tooltip = element("title", escape(title)) if title else ""
    return element(
        "rect", tooltip, x=x, y=y, width=max(wide, 0.0), height=high, **attributes
    )


def drawing(
    parts: Iterable[str], wide: float, high: float, name: str, **attributes: object
) -> str:
    """An SVG that scales with the page; `name` is its text for those who do not see it.

    Where the window is too narrow for its letters it scrolls.
    """
    view = f"0 0 {_plain(float(wide))} {_plain(float(high))}"
    picture = element(
        "svg", "".join(parts), viewBox=view, role="img", aria_label=name, **attributes
    )
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(name)}">{picture}</div>'


def for_each_window(draw: Callable[[float], str]) -> str:
    """A drawing made twice, for a window and for a phone; the page's style shows one of them."""
    return (
        f'<div class="window">{draw(WIDE)}</div><div class="phone">{draw(PHONE)}</div>'
    )


def on_phone(wide: float) -> bool:
    """Whether a drawing is so narrow that names stand above their rows, not beside them."""
    return wide < WIDE


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: int = 1,
    caption: str = "",
) -> str:
    """A table whose first `texts` columns are words and the others numbers; cells are escaped here."""

    def cells(tag: str, line: Sequence[str]) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(
            f"<{tag}{scope}{'' if i < texts else ' class=n'}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(line)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    many = ' class="many"' if len(heads) > _FEW else ""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption or heads[0] or "table")}">'
        f"<table{many}>{title}<thead><tr>{cells('th', heads)}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def time_axis(
    length: float,
    left: float,
    right: float,
    y: float,
    ticks: Iterable[tuple[float, str]],
) -> list[str]:
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
