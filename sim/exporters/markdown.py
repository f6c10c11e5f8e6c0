"""The result as Markdown, for a pull request or a page of notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sim import files
from sim.analysis.prediction import Prediction
from sim.exporters import _words as words
from sim.units import format_bytes, format_duration

SUFFIXES = (".md",)


def render(result: Prediction) -> str:
    """The report as text."""
    parts = [f"# {words.title(result)}", _table(("", ""), words.headline(result))]
    if result.breakdown:
        rows = [
            (name, format_duration(s), words.percent(part))
            for name, s, part in words.shares(result)
        ]
        parts += [
            "## Where the step goes",
            _table(("share", "time", "of the step"), rows),
        ]
    if result.peak_memory:
        rows2 = [(owner, format_bytes(size)) for owner, size in words.memory(result)]
        parts += [
            "## Memory",
            f"{words.memory_verdict(result)}.",
            _table(("owner", "size"), rows2),
        ]
    if result.links:
        parts += [
            "## Busiest links",
            _table(("link", "busy", "carried", "1 % faster saves"), _links(result)),
        ]
    if result.evidence:
        rows2 = [
            (grade, words.percent(share)) for grade, share in result.evidence.items()
        ]
        parts += ["## What the time rests on", _table(("evidence", "share"), rows2)]
    if result.fallbacks:
        rows3 = [
            (f.what, f.grade, str(f.count), words.percent(f.share))
            for f in result.fallbacks
        ]
        heads = ("what", "grade", "times", "share")
        parts += [
            "## Fallbacks: not covered by a measurement or a fit",
            _table(heads, rows3),
        ]
    if result.warnings:
        parts += [
            "## Warnings",
            "\n".join(f"* {warning}" for warning in result.warnings),
        ]
    return "\n\n".join(parts) + "\n"


def write(result: Prediction, path: str | Path) -> None:
    """Write the report to a file."""
    files.write_text(path, render(result))


def _links(result: Prediction) -> list[tuple[str, ...]]:
    return [
        (
            link.name,
            words.percent(link.utilisation),
            format_bytes(link.bytes),
            words.saved(link) or "-",
        )
        for link in result.links
    ]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is left-aligned, the others right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
        for line in lines
    )
