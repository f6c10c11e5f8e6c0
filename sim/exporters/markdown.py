"""The result as Markdown, for a pull request or a page of notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from prestep.sim import files
from prestep.sim.analysis.evidence import of_others
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _variants as of_variants
from prestep.sim.exporters import _words as words
from prestep.sim.studies.variants import Variant
from prestep.sim.units import format_bytes, format_duration, percent

SUFFIXES = (".md",)


def render(result: Prediction, variants: Sequence[Variant] = ()) -> str:
    """The report as text; of a run with variants these come first."""
    parts = [f"# {words.title(result)}"]
    if variants:
        parts += _variants(variants)
    parts += [
        ", ".join(filter(None, words.chips(result))),
        table(("", ""), words.headline(result)),
    ]
    for heading, body in _sections(result):
        parts += [f"## {heading}", body]
    return "\n\n".join(parts) + "\n"


def _variants(variants: Sequence[Variant]) -> list[str]:
    """The verdict, the table, and a sentence for each variant."""
    lines = [f"* {name}: {text}" for name, text in of_variants.verdicts(variants)]
    compared = table(of_variants.heads(variants), of_variants.rows(variants))
    return [
        of_variants.verdict(variants),
        compared,
        *(["\n".join(lines)] if lines else []),
    ]


def _sections(result: Prediction) -> Iterator[tuple[str, str]]:
    """(heading, body) of what the result has."""
    if result.breakdown:
        yield "Where the step goes", _breakdown(result)
    if result.peak_memory:
        yield "Memory", _memory(result)
    if result.links:
        heads = ("link", "busy", "carried", "1 % faster saves")
        yield "Busiest links", table(heads, _links(result))
    if result.evidence:
        grades = result.evidence.items()
        rows = [(grade, percent(share)) for grade, share in grades]
        grounds = table(("constants", "of the step"), rows)
        others = of_others(result.tables)
        yield (
            "What the time rests on",
            f"{grounds}\n\nTimes of kernels: {others}." if others else grounds,
        )
    if result.fallbacks:
        yield "Fallbacks: not covered by a measurement or a fit", _fallbacks(result)
    if result.warnings:
        yield "Warnings", "\n".join(f"* {warning}" for warning in result.warnings)


def _breakdown(result: Prediction) -> str:
    rows = [
        (name, format_duration(seconds), percent(share))
        for name, seconds, share in words.shares(result)
    ]
    return table(("share", "time", "of the step"), rows)


def _memory(result: Prediction) -> str:
    rows = [(owner, format_bytes(size)) for owner, size in words.memory(result)]
    parts = [f"{words.memory_verdict(result)}.", table(("owner", "size"), rows)]
    if blocks := [(name, format_bytes(size)) for name, size in words.allocator(result)]:
        parts.append(table(("allocator, and modules at the peak", "size"), blocks))
    return "\n\n".join(parts)


def _fallbacks(result: Prediction) -> str:
    rows = [
        (fallback.what, fallback.grade, str(fallback.count), percent(fallback.share))
        for fallback in result.fallbacks
    ]
    return table(("what", "grade", "times", "share"), rows)


def write(
    result: Prediction, path: str | Path, variants: Sequence[Variant] = ()
) -> None:
    """Write the report to a file."""
    files.write_text(path, render(result, variants))


def _links(result: Prediction) -> list[tuple[str, ...]]:
    return [
        (
            link.name,
            percent(link.utilisation),
            format_bytes(link.bytes),
            words.saved(link) or "-",
        )
        for link in result.links
    ]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is left-aligned, the others right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
        for line in lines
    )
