"""The report's bars: shares of a whole, and the tornado of what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from sim.exporters._html.svg import box, drawing, element, label
from sim.units import format_duration

_WIDE, _SIDE = 1100.0, 230.0


def stacked(
    parts: Sequence[tuple[str, float, str, str]], name: str, whole: float | None = None
) -> str:
    """One bar of parts (what, size, class of colour, text for the pointer); `whole` is its full length.

    It is no SVG, so that it keeps its height and its letters in a narrow window.
    """
    total = whole or sum(size for _, size, _, _ in parts) or 1.0
    drawn = []
    for what, size, colour, told in parts:
        share = size / total
        inside = escape(what) if 1100 * share > 9 * len(what) + 8 else ""
        pale = ' class="pale"' if colour in _PALE else ""
        style = f"width:{100 * share:.3f}%;background:var(--{colour})"
        drawn.append(
            f'<span{pale} style="{style}" title="{escape(f"{what}: {told}")}">{inside}</span>'
        )
    listed = ", ".join(f"{what} {told}" for what, _, _, told in parts)
    return f'<div class="stack" role="img" aria-label="{escape(f"{name}: {listed}")}">{"".join(drawn)}</div>'


_PALE = ("bubble", "wait", "idle")  # colours that white letters cannot be read on


def tornado(table: dict[str, Any], most: int = 24) -> str:
    """Bars of `sim.studies.whatif.tornado`: to the left faster, to the right slower."""
    rows = table["elements"][:most]
    longest = (
        max((abs(c["difference"]) for row in rows for c in row["changes"]), default=0.0)
        or 1.0
    )
    middle, half = _SIDE + 60 + (_WIDE - _SIDE - 60) / 2, (_WIDE - _SIDE - 60) / 2 - 130
    drawn = [
        label("faster", middle - 12, 12, class_="soft", text_anchor="end"),
        label("slower", middle + 12, 12, class_="soft"),
    ]
    for at, row in enumerate(rows):
        y = 22.0 + at * 26
        drawn.append(label(row["element"][:40], 0, y + 15))
        for left in (True, False):
            mine = [
                change
                for change in row["changes"]
                if (change["difference"] < 0) is left
            ]
            drawn += _side(
                row["element"],
                mine,
                (middle, y),
                -half / longest if left else half / longest,
            )
    high = 26.0 + 26 * len(rows)
    drawn.append(element("line", x1=middle, x2=middle, y1=16, y2=high, class_="axis"))
    return drawing(drawn, _WIDE, high + 4, "What each element changes")


def _side(
    name: str, changes: list[dict[str, Any]], at: tuple[float, float], scale: float
) -> list[str]:
    """Bars of one element to one side of `at`, the longest below, and after them what they are."""
    drawn, (x, y) = [], at
    ordered = sorted(changes, key=lambda change: -abs(change["difference"]))
    for change in ordered:
        wide = abs(scale * change["difference"])
        told = f"{name} at {change['factor']:g}x: {_signed(change['difference'])}"
        colour = "good" if scale < 0 else "bad"
        place = x - wide if scale < 0 else x
        drawn.append(
            box(
                place,
                y,
                wide,
                20,
                told,
                style=f"fill:var(--{colour})",
                fill_opacity=0.75,
            )
        )
    seen = [change for change in ordered if abs(change["difference"]) > 5e-10]
    if seen:
        text = ", ".join(
            f"{change['factor']:g}x {_signed(change['difference'])}" for change in seen
        )
        place = x + scale * abs(seen[0]["difference"])
        anchor, gap = ("end", -6) if scale < 0 else ("start", 6)
        drawn.append(
            label(text, place + gap, y + 15, class_="soft", text_anchor=anchor)
        )
    return drawn


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_duration(abs(seconds))}"
