"""What-ifs for people: two predictions side by side, and a tornado of the elements of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sim.exporters._words import percent, share_name
from sim.units import format_duration

Table = dict[str, Any]
HALF = 24  # columns of either side of a tornado's bars
SHOWN = 24
_LEAST = 5e-10  # seconds: less is nothing


def comparison_page(comparison: Table) -> str:
    """Base and changed side by side: the step, its shares, and the links that bound it."""
    base, changed = comparison["base"], comparison["changed"]
    lines = [f"{'':32}{'base':>12}{'changed':>12}{'difference':>14}"]
    lines.append(
        _row("step time", base["step_time"], changed["step_time"], base["step_time"])
    )
    for name in {**base["breakdown"], **changed["breakdown"]}:
        before, after = (
            base["breakdown"].get(name, 0.0),
            changed["breakdown"].get(name, 0.0),
        )
        if max(before, after) > _LEAST:
            lines.append(
                _row(f"  {share_name(name)}", before, after, base["step_time"])
            )
    if found := comparison.get("difference_interval"):
        told = f"{_signed(found['low'])} to {_signed(found['high'])}"
        lines.append(
            f"difference, {found['nominal']:.0%} interval: {told}".replace("%", " %")
        )
    faster = comparison["speedup"]
    lines.append(f"{faster:.3f} times as fast")
    for which, part in (("base", base), ("changed", changed)):
        lines += _bounds(which, part["link_kinds"]) + _links(which, part["links"])
    return "\n".join(lines)


def _row(name: str, before: float, after: float, whole: float) -> str:
    """A share in both runs; the difference also as a part of the base's step."""
    part = percent((after - before) / whole, True) if whole else "-"
    return f"{name:32}{format_duration(before):>12}{format_duration(after):>12}{_signed(after - before):>14}{part:>10}"


def _signed(seconds: float) -> str:
    if abs(seconds) < _LEAST:
        return "0 s"
    return f"{'-' if seconds < 0 else '+'}{format_duration(abs(seconds))}"


def _bounds(which: str, kinds: list[Table]) -> list[str]:
    """Kinds of links that the step depends on."""
    known = [kind for kind in kinds if kind.get("shadow_price") is not None]
    if not known:
        return []
    lines = [f"links that bound the step, {which}:"]
    for kind in known:
        price, held = kind["shadow_price"], kind["held"]
        if abs(price) > _LEAST:
            held_text = (
                f", full for {format_duration(held)} of the step"
                if held > _LEAST
                else ""
            )
            word = "saves" if price > 0 else "costs"
            lines.append(
                f"  {kind['kind']}  1 % faster {word} {format_duration(abs(price) / 100)}{held_text}"
            )
    return lines if len(lines) > 1 else [f"links that bound the step, {which}: none"]


def _links(which: str, links: list[Table]) -> list[str]:
    if not links:
        return []
    shown = [
        f"  {_name(link)}  {float(link.get('utilisation', 0.0)):.0%} used"
        for link in links[:3]
    ]
    return [f"busiest links, {which}:", *shown]


def _name(link: Table) -> str:
    return str(link.get("name") or f"{link.get('src', '?')} -> {link.get('dst', '?')}")


def tornado_page(table: Table) -> str:
    """Bars to the right are slower, to the left faster; one row an element, one column a factor."""
    factors = [f"{factor:g}x" for factor in table["factors"]]
    rows, rest = table["elements"][:SHOWN], table["elements"][SHOWN:]
    wide = max([len(row["element"]) for row in rows] + [8]) + 2
    lines = [
        f"step time {format_duration(table['step_time'])}; each at {' and '.join(factors)}:",
        "",
    ]
    lines.append(
        f"{'':{wide}}"
        + "".join(f"{factor:>12}" for factor in factors)
        + f"  {'faster':>{HALF}} | slower"
    )
    longest = max((row["effect"] for row in rows), default=0.0) or 1.0
    for row in rows:
        numbers = "".join(
            f"{_signed(change['difference']):>12}" for change in row["changes"]
        )
        bar = (
            "|"
            if row["effect"] < _LEAST
            else _bars([change["difference"] for change in row["changes"]], longest)
        )
        lines.append(
            f"{row['element']:{wide}}{numbers}  {bar if bar != '|' else ' ' * HALF + ' |'}".rstrip()
        )
    if rest:
        lines.append(
            f"{len(rest)} more, of at most {format_duration(rest[0]['effect'])}"
        )
    return "\n".join(lines)


def _bars(differences: Iterable[float], longest: float) -> str:
    """The widest difference on either side of a bar that stands for none."""
    listed = list(differences)
    left, right = (max(0.0, *(sign * d for d in listed), 0.0) for sign in (-1, 1))
    return f"{_bar(left, longest):>{HALF}} | {_bar(right, longest)}".rstrip()


def _bar(value: float, longest: float) -> str:
    count = round(value / longest * HALF)
    return "█" * count if count or value < _LEAST else "▏"
