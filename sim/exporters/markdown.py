"""The result as Markdown, for a pull request or a page of notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from prestep.sim import files
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _variants as of_variants
from prestep.sim.exporters import _words as words
from prestep.sim.exporters._sheets import sheets_of
from prestep.sim.studies.variants import Variant
from prestep.sim.tables import Sheet

SUFFIXES = (".md",)


def render(result: Prediction, variants: Sequence[Variant] = ()) -> str:
    """The report as text; of a run with variants these come first."""
    chips = ", ".join(filter(None, words.chips(result)))
    compared = _variants(variants) if variants else []
    sheets = parts(sheets_of(result))
    return "\n\n".join([f"# {words.title(result)}", *compared, chips, *sheets]) + "\n"


def parts(sheets: Iterable[Sheet]) -> Iterator[str]:
    """Headings, tables and notes of sheets."""
    for sheet in sheets:
        yield from [f"## {sheet.title}"] if sheet.title else ()
        if sheet.rows:
            yield table(sheet.heads[: len(sheet.rows[0])], sheet.rows)
        yield from sheet.notes


def _variants(variants: Sequence[Variant]) -> list[str]:
    """The verdict, the table, and a sentence for each variant."""
    lines = [f"* {name}: {text}" for name, text in of_variants.verdicts(variants)]
    compared = table(of_variants.heads(variants), of_variants.rows(variants))
    return [
        of_variants.verdict(variants),
        compared,
        *(["\n".join(lines)] if lines else []),
    ]


def write(
    result: Prediction, path: str | Path, variants: Sequence[Variant] = ()
) -> None:
    """Write the report to a file."""
    files.write_text(path, render(result, variants))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is left-aligned, the others right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
        for line in lines
    )
