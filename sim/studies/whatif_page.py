"""What-ifs for people: two predictions side by side, and a tornado of the elements of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sim.exporters._answers import of_comparison
from sim.exporters._words import share_name
from sim.units import format_duration, percent

Table = dict[str, Any]
HALF = 24  # columns of either side of a tornado's bars
SHOWN = 24
_LEAST = 5e-10  # seconds: less is nothing


def comparison_page(comparison: Table) -> str:
    """Base and changed side by side: the step, its shares, and the links that bound it."""
    base, changed = comparison["base"], comparison["changed"]
    return "\n".join(
        [
            of_comparison(comparison),
            f"{'':32}{'base':>12}{'changed':>12}{'difference':>14}",
            *_shares(base, changed),
            *_interval(comparison.get("difference_interval")),
            *_bounds("base", base["link_kinds"]),
            *_links("base", base["links"]),
            *_bounds("changed", changed["link_kinds"]),
            *_links("changed", changed["links"]),
        ]
    )


def _shares(base: Table, changed: Table) -> Iterator[str]:
    """The step time, and where it goes."""
    step = base["step_time"]
    yield _row("step time", step, changed["step_time"], step)
    for name in {**base["breakdown"], **changed["breakdown"]}:
        before = base["breakdown"].get(name, 0.0)
        after = changed["breakdown"].get(name, 0.0)
        if max(before, after) > _LEAST:
            yield _row(f"  {share_name(name)}", before, after, step)


def _row(name: str, before: float, after: float, whole: float) -> str:
    """A share in both runs; the difference also as a part of the base's step."""
    part = percent((after - before) / whole, True) if whole else "-"
    times = f"{format_duration(before):>12}{format_duration(after):>12}"
    return f"{name:32}{times}{_signed(after - before):>14}{part:>10}"


def _interval(interval: Table | None) -> Iterator[str]:
    if interval:
        low, high = _signed(interval["low"]), _signed(interval["high"])
        line = f"difference, {interval['nominal']:.0%} interval: {low} to {high}"
        yield line.replace("%", " %")


def _signed(seconds: float) -> str:
    if abs(seconds) < _LEAST:
        return "0 s"
    return f"{'-' if seconds < 0 else '+'}{format_duration(abs(seconds))}"


def _bounds(which: str, kinds: list[Table]) -> list[str]:
    """Kinds of links that the step depends on."""
    priced = [kind for kind in kinds if kind.get("shadow_price") is not None]
    if not priced:
        return []
    head = f"links that bound the step, {which}:"
    lines = [_bound(kind) for kind in priced if abs(kind["shadow_price"]) > _LEAST]
    return [head, *lines] if lines else [f"{head} none"]


def _bound(kind: Table) -> str:
    price, held = kind["shadow_price"], kind["held"]
    word = "saves" if price > 0 else "costs"
    line = f"  {kind['kind']}  1 % faster {word} {format_duration(abs(price) / 100)}"
    if held <= _LEAST:
        return line
    return f"{line}, full for {format_duration(held)} of the step"


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
    rows, rest = table["elements"][:SHOWN], table["elements"][SHOWN:]
    width = max([len(named(row)) for row in rows] + [8]) + 2
    longest = max((row["effect"] for row in rows), default=0.0) or 1.0
    lines = [*_head(table, width), *(_element(row, width, longest) for row in rows)]
    if rest:
        most = format_duration(rest[0]["effect"])
        lines.append(f"{len(rest)} more, of at most {most}")
    return "\n".join(lines)


def _head(table: Table, width: int) -> list[str]:
    factors = [f"{factor:g}x" for factor in table["factors"]]
    step = format_duration(table["step_time"])
    columns = "".join(f"{factor:>12}" for factor in factors)
    return [
        f"step time {step}; each at {' and '.join(factors)}:",
        *coverage(table),
        "",
        f"{'':{width}}{columns}  {'faster':>{HALF}} | slower",
    ]


def named(row: Table) -> str:
    """An element with how many are like it, and the pipeline stages that it has."""
    return str(row.get("label") or row["element"])


def coverage(table: Table) -> list[str]:
    """How many of how many were tried, of words whose elements are many; and how those were chosen."""
    return [
        _covered(word)
        for word in table.get("coverage", ())
        if word["classes"] < word["elements"] or word["tried"] < word["classes"]
    ]


def _covered(word: Table) -> str:
    tried, classes, whole = (f"{word[key]:,}" for key in ("tried", "classes", "elements"))  # fmt: skip
    name = f"{word['each']}: "
    if word["tried"] == word["classes"]:
        kinds = "kinds" if word["classes"] > 1 else "kind"
        return f"{name}all {whole}, by one of each of {classes} {kinds} that are alike"
    return (
        f"{name}{tried} of {classes} kinds tried, which stand for {word['covered']:,} of {whole}; "
        f"chosen {word['chosen']} (--most {word['classes']} tries all)"
    )


def _element(row: Table, width: int, longest: float) -> str:
    """A row of the tornado; a bar to either side where the step changes at all."""
    differences = [change["difference"] for change in row["changes"]]
    numbers = "".join(f"{_signed(difference):>12}" for difference in differences)
    bars = " " * HALF + " |"
    if row["effect"] >= _LEAST:
        bars = _bars(differences, longest)
    return f"{named(row):{width}}{numbers}  {bars}".rstrip()


def _bars(differences: Iterable[float], longest: float) -> str:
    """The widest difference on either side of a bar that stands for none."""
    listed = list(differences)
    left, right = (max(0.0, *(sign * d for d in listed), 0.0) for sign in (-1, 1))
    return f"{_bar(left, longest):>{HALF}} | {_bar(right, longest)}".rstrip()


def _bar(value: float, longest: float) -> str:
    count = round(value / longest * HALF)
    return "█" * count if count or value < _LEAST else "▏"
