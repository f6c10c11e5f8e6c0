"""Small drawings as SVG text. Colours are classes of page.css, so that they follow light, dark and print."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape


def element(tag: str, text: str = "", /, **attributes: object) -> str:
    """`<tag a="1">text</tag>`; `text` is markup already, attributes are escaped, `_` in their names is `-`."""
    said = "".join(
        f' {k.rstrip("_").replace("_", "-")}="{escape(_plain(v))}"'
        for k, v in attributes.items()
    )
    return f"<{tag}{said}>{text}</{tag}>"


def _plain(value: object) -> str:
    return (
        f"{value:.2f}".rstrip("0").rstrip(".")
        if isinstance(value, float)
        else str(value)
    )


def label(text: str, x: float, y: float, **attributes: object) -> str:
    return element("text", escape(text), x=x, y=y, **attributes)


def box(
    x: float, y: float, wide: float, high: float, title: str = "", **attributes: object
) -> str:
    """A rectangle; `title` is what a pointer over it shows."""
    told = element("title", escape(title)) if title else ""
    return element(
        "rect", told, x=x, y=y, width=max(wide, 0.0), height=high, **attributes
    )


def drawing(
    parts: Iterable[str], wide: float, high: float, name: str, **attributes: object
) -> str:
    """An SVG that scales with the page; `name` is its text for those who do not see it.

    Where the window is too narrow for its letters it scrolls.
    """
    view = f"0 0 {_plain(float(wide))} {_plain(float(high))}"
    made = element(
        "svg", "".join(parts), viewBox=view, role="img", aria_label=name, **attributes
    )
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(name)}">{made}</div>'


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
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption or heads[0] or "table")}">'
        f"<table>{said}<thead><tr>{cells('th', heads)}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def decades(low: float, high: float) -> list[float]:
    """Powers of ten that enclose [low, high]."""
    return [
        10.0**p
        for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ]
