"""A result as titled tables, which the terminal and Markdown print."""

from __future__ import annotations

from collections.abc import Iterator

from prestep.sim.analysis.critical_path import CriticalPath, path_part
from prestep.sim.analysis.effects import pages_of
from prestep.sim.analysis.evidence import of_others
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _words as words
from prestep.sim.extras import lazily
from prestep.sim.tables import Sheet
from prestep.sim.units import format_bytes, format_duration, percent

with lazily():
    from prestep.sim.exporters import _sections as sections_of

MEMORY, WARNINGS = "Memory", "Warnings"
MOST = 5  # parts that are listed; the others in one row
PAIR = ("", "")  # heads of rows (what, how much)


def sheets_of(result: Prediction) -> Iterator[Sheet]:
    """Tables of what the result has, in the order of a page; those without a title belong to the one before."""
    yield Sheet("", PAIR, list(words.headline(result)), texts=2)
    if result.breakdown:
        shares = list(words.shares(result))
        rows = [(name, format_duration(s), percent(part)) for name, s, part in shares]
        heads, bars = ("share", "time", "of the step"), [part for *_, part in shares]
        yield Sheet("Where the step goes", heads, rows, bars=bars)
    path = result.critical_path
    if path is not None and path.segments:
        yield _critical(path)
    if result.peak_memory:
        yield from _memory(result)
    if result.links:
        yield _links(result)
    yield from _asked(result)
    yield from _grounds(result)


def _critical(path: CriticalPath) -> Sheet:
    """Its longest parts: what would have to be faster for the step to be."""
    parts = path.parts()
    listed = [
        (path_part(part), part["seconds"], part["share"]) for part in parts[:MOST]
    ]
    if rest := parts[MOST:]:
        seconds = sum(part["seconds"] for part in rest)
        listed.append((f"{len(rest)} more", seconds, seconds / path.length))
    rows = [(name, format_duration(s), percent(share)) for name, s, share in listed]
    heads = ("part", "time", "of the path")
    return Sheet("Critical path through all ranks", heads, rows)


def _memory(result: Prediction) -> Iterator[Sheet]:
    """The peak, who has it, and what the allocator holds."""
    verdict = result.out_of_memory
    yield Sheet(MEMORY, (), (), notes=(words.memory_verdict(result),))
    if verdict is not None:
        whole = max(verdict.needed, verdict.capacity or 0.0) or 1.0
        owners = [(name, size, size / whole) for name, size in words.memory(result)]
        rows = [(name, format_bytes(s), percent(part)) for name, s, part in owners]
        bars = [part for *_, part in owners]
        yield Sheet("", ("owner", "size", "of the whole"), rows, bars=bars)
    if blocks := [(name, format_bytes(size)) for name, size in words.allocator(result)]:
        yield Sheet("", ("allocator, and modules at the peak", "size"), blocks)


def _links(result: Prediction) -> Sheet:
    """The busiest links, of those whose figures are the same one; and kinds of links that are worth something."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for link in result.links:
        figures = percent(link.utilisation), format_bytes(link.bytes), words.saved(link)
        alike.setdefault((*figures, _spark(link.profile)), []).append(link.name)
    rows, tails = list[tuple[str, ...]](), list[str]()
    for row, (name, *others) in alike.items():
        rows.append((name, *row[:-1]))
        tails.append(row[-1])
        if others:
            rows.append((f"  {len(others)} more like it", "", "", ""))
            tails.append("")
    for kind in result.link_kinds:
        if kind.shadow_price:
            full = f"full for {format_duration(kind.held)} of the step"
            whole, size = f"all {kind.links} of {kind.kind}", format_bytes(kind.bytes)
            rows.append((whole, "", size, words.price(kind.shadow_price)))
            why = (full if kind.held > 0 else "", kind.cause)
            tails.append(": ".join(filter(None, why)))
    priced = any(link.shadow_price is not None for link in result.links)
    saves = "1 % faster saves" if priced else ""
    last = "in the last step" if result.link_loads else ""
    heads = ("", "busy", "carried", saves, last)
    return Sheet("Busiest links", heads, rows, bars=tails)


def _spark(profile: tuple[float, ...]) -> str:
    """A share over time as a row of bars, two parts to a column."""
    pairs = [max(profile[at : at + 2]) for at in range(0, len(profile), 2)]
    return "".join(" ▁▂▃▄▅▆▇█"[round(min(1.0, share) * 8)] for share in pairs).rstrip()


def _asked(result: Prediction) -> Iterator[Sheet]:
    """What a scenario may ask for beside the step."""
    if result.host is not None:
        rows = list(sections_of.host(result.host, result.step_time))
        yield Sheet("What the host decides", PAIR, rows, texts=2)
    for title, rows in pages_of(result.effects):
        yield Sheet(title, ("",) * max(map(len, rows), default=0), rows, texts=9)
    if result.cost is not None:
        rows = list(words.energy(result, result.cost))
        yield Sheet("Power and cost", PAIR, rows, texts=2)
    if result.replicas is not None:
        rows = sections_of.noise(result.replicas)
        yield Sheet("The step with noise", PAIR, rows, texts=2)


def _grounds(result: Prediction) -> Iterator[Sheet]:
    """What the times rest on, and what the reader is warned of."""
    if result.evidence:
        grades = result.evidence.items()
        notes = [", ".join(f"{grade} {percent(share)}" for grade, share in grades)]
        if others := of_others(result.tables):
            notes.append(f"times of kernels: {others}")
        yield Sheet("The step rests on constants that are", (), (), notes=notes)
    if listed := result.fallbacks:
        rows = [
            (f.what, f.grade, f"{f.count} x", percent(f.share)) for f in listed[:MOST]
        ]
        if rest := listed[MOST:]:
            share = percent(sum(f.share for f in rest))
            rows.append((f"{len(rest)} more", "", "", share))
        heads, title = ("what", "grade", "times", "share"), "Fallbacks: not covered"
        yield Sheet(f"{title} by a measurement or a fit", heads, rows, texts=2)
    if result.warnings:
        warnings = [("!", warning) for warning in result.warnings]
        yield Sheet(WARNINGS, PAIR, warnings, texts=2)
