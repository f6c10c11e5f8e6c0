"""What-ifs for people: two predictions side by side, and a tornado of the elements of a cluster."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prestep.sim.analysis.choices import Choice
from prestep.sim.analysis.memory import MemoryVerdict
from prestep.sim.exporters import _variants
from prestep.sim.exporters._answers import of_comparison
from prestep.sim.exporters._words import share_name
from prestep.sim.studies.variants import Variant
from prestep.sim.units import (
    LEAST_DIFFERENCE,
    format_bytes,
    format_difference,
    format_duration,
    percent,
)

Table = dict[str, Any]
HALF = (
    24  # columns of either side of a tornado's bars, where the terminal is wide enough
)
LEAST_HALF = 6
SHOWN = 24
SHOWN_LINKS = 3
SHOWN_CHOICES = 3
NUMBER = 12  # columns of a difference


def comparison_page(comparison: Table) -> str:
    """Base and changed side by side: the step, its shares, and the links that bound it."""
    base, changed = comparison["base"], comparison["changed"]
    return "\n".join(
        [
            of_comparison(comparison),
            *(
                textwrap.fill(line, 80, subsequent_indent="  ")
                for line in _told(comparison)
            ),
            f"{'':32}{'base':>12}{'changed':>12}{'difference':>14}",
            *_shares(base, changed),
            *_interval(comparison.get("difference_interval")),
            *_choices(comparison["choices"]),
            *_about_links(base, changed),
        ]
    )


def variants_page(variants: Sequence[Variant]) -> str:
    """The verdict, a table of the variants, and a sentence for each; of a single one also its shares."""
    lines = [_variants.verdict(variants), "", *_variants.lines(variants), ""]
    lines += [f"{name}: {text}" for name, text in _variants.verdicts(variants)]
    if len(variants) == 2:
        _, *rest = comparison_page(variants[1].comparison or {}).split("\n")
        lines += rest
    return "\n".join(lines).rstrip()


def _about_links(base: Table, changed: Table) -> list[str]:
    """What bounds either step, and its busiest links; once, where nothing differs."""

    def said(which: str, side: Table) -> list[str]:
        return [*_bounds(which, side["link_kinds"]), *_links(which, side["links"])]

    if said("", base) == said("", changed):
        return said("base and changed", base)
    return [*said("base", base), *said("changed", changed)]


def _told(comparison: Table) -> Iterator[str]:
    """Which of the steps does not fit, and what is said of each."""
    sides = {which: comparison[which] for which in ("base", "changed")}
    for which, side in sides.items():
        verdict = side["out_of_memory"]
        if verdict is not None and not verdict["fits"]:
            over = format_bytes(verdict["needed"] - (verdict["capacity"] or 0.0))
            where = MemoryVerdict(**verdict).where
            yield f"! {which} does not fit: {over} too much {where}"
    said = dict.fromkeys(text for side in sides.values() for text in side["warnings"])
    for warning in said:
        found = [which for which, side in sides.items() if warning in side["warnings"]]
        yield f"! {warning}" if len(found) == 2 else f"! {found[0]}: {warning}"


def _shares(base: Table, changed: Table) -> Iterator[str]:
    """The step time, and where it goes."""
    step = base["step_time"]
    yield _row("step time", step, changed["step_time"], step)
    for name in {**base["breakdown"], **changed["breakdown"]}:
        before = base["breakdown"].get(name, 0.0)
        after = changed["breakdown"].get(name, 0.0)
        if max(before, after) > LEAST_DIFFERENCE:
            yield _row(f"  {share_name(name)}", before, after, step)


def _row(name: str, before: float, after: float, whole: float) -> str:
    """A share in both runs; the difference also as a part of the base's step."""
    part = percent((after - before) / whole, True) if whole else "-"
    times = f"{format_duration(before):>12}{format_duration(after):>12}"
    return f"{name:32}{times}{format_difference(after - before):>14}{part:>10}"


def _interval(interval: Table | None) -> Iterator[str]:
    if interval:
        low, high = (
            format_difference(interval["low"]),
            format_difference(interval["high"]),
        )
        line = f"difference, {interval['nominal']:.0%} interval: {low} to {high}"
        yield line.replace("%", " %")


def _choices(choices: list[Table]) -> Iterator[str]:
    """Communications that NCCL runs otherwise after the changes."""
    for choice in choices[:SHOWN_CHOICES]:
        yield f"NCCL runs {Choice(**choice)}"
    if len(choices) > SHOWN_CHOICES:
        yield f"NCCL runs {len(choices) - SHOWN_CHOICES} more otherwise"


def _bounds(which: str, kinds: list[Table]) -> list[str]:
    """Kinds of links that the step depends on."""
    priced = [kind for kind in kinds if kind.get("shadow_price") is not None]
    if not priced:
        return []
    head = f"links that bound the step, {which}:"
    lines = [
        _bound(kind) for kind in priced if abs(kind["shadow_price"]) > LEAST_DIFFERENCE
    ]
    return [head, *lines] if lines else [f"{head} none"]


def _bound(kind: Table) -> str:
    price, held = kind["shadow_price"], kind["held"]
    word = "saves" if price > 0 else "costs"
    line = f"  {kind['kind']}  1 % faster {word} {format_duration(abs(price) / 100)}"
    if held > LEAST_DIFFERENCE:
        line += f", full for {format_duration(held)} of the step"
    return f"{line}: {kind['cause']}" if kind.get("cause") else line


def _links(which: str, links: list[Table]) -> list[str]:
    """The busiest links; of those that are used alike one, with how many more of the listed are."""
    if not links:
        return []
    alike: dict[tuple[str, str], list[Table]] = {}
    for link in links:
        used = percent(float(link.get("utilisation", 0.0)))
        alike.setdefault((str(link.get("kind", "")), used), []).append(link)
    rows = list(alike.items())[:SHOWN_LINKS]
    return [f"busiest links, {which}:", *(_used(key[1], group) for key, group in rows)]


def _used(used: str, links: list[Table]) -> str:
    more = f", as are {len(links) - 1} more" if len(links) > 1 else ""
    return f"  {_name(links[0])}  {used} used{more}"


def _name(link: Table) -> str:
    return str(link.get("name") or f"{link.get('src', '?')} -> {link.get('dst', '?')}")


def tornado_page(table: Table, columns: int = 80) -> str:
    """Bars to the right are slower, to the left faster; one row an element, one column a factor."""
    rows, rest = table["elements"][:SHOWN], table["elements"][SHOWN:]
    width = max([len(named(row)) for row in rows] + [8]) + 2
    half = _half(columns - width - NUMBER * len(table["factors"]))
    longest = max((row["effect"] for row in rows), default=0.0) or 1.0
    lines = [
        *_head(table, width, half),
        *(_element(row, width, half, longest) for row in rows),
    ]
    if rest:
        most = format_duration(rest[0]["effect"])
        lines.append(f"{len(rest)} more, of at most {most}")
    return "\n".join(lines)


def _half(left: int) -> int:
    """Columns of either side of the bars, of those that are left of a line."""
    between = len("  ") + len(" | ")
    return max(LEAST_HALF, min(HALF, (left - between) // 2))


def _head(table: Table, width: int, half: int) -> list[str]:
    factors = [f"{factor:g}x" for factor in table["factors"]]
    step = format_duration(table["step_time"])
    columns = "".join(f"{factor:>{NUMBER}}" for factor in factors)
    return [
        largest(table),
        f"step time {step}; each at {' and '.join(factors)}:",
        *coverage(table),
        "",
        f"{'':{width}}{columns}  {'faster':>{half}} | slower",
    ]


def largest(table: Table) -> str:
    """The answer: the element that matters most, and the change that shows it."""
    if not table["elements"] or table["elements"][0]["effect"] < LEAST_DIFFERENCE:
        return "Nothing that was tried changes the step."
    row = table["elements"][0]
    change = max(row["changes"], key=lambda one: abs(one["difference"]))
    part = percent(change["difference"] / table["step_time"], True)
    times = f"{format_difference(change['difference'])}, {part}"
    return f"{named(row)} matters most: {times} at {change['factor']:g}x."


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


def _element(row: Table, width: int, half: int, longest: float) -> str:
    """A row of the tornado; a bar to either side where the step changes at all."""
    differences = [change["difference"] for change in row["changes"]]
    numbers = "".join(
        f"{format_difference(difference):>{NUMBER}}" for difference in differences
    )
    bars = " " * half + " |"
    if row["effect"] >= LEAST_DIFFERENCE:
        bars = _bars(differences, half, longest)
    return f"{named(row):{width}}{numbers}  {bars}".rstrip()


def _bars(differences: Iterable[float], half: int, longest: float) -> str:
    """The widest difference on either side of a bar that stands for none."""
    listed = list(differences)
    left, right = (max(0.0, *(sign * d for d in listed), 0.0) for sign in (-1, 1))
    faster, slower = (_bar(value / longest, half) for value in (left, right))
    return f"{faster:>{half}} | {slower}".rstrip()


def _bar(share: float, half: int) -> str:
    """A bar of a share of the longest."""
    count = round(share * half)
    return "█" * count if count or not share else "▏"
