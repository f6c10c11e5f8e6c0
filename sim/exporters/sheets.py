"""A command's answer as one page or as Markdown: the answer, what was run, and tables; for commands without a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from prestep.sim import files
from prestep.sim.errors import InputError
from prestep.sim.exporters import html, markdown
from prestep.sim.markup import markup, paragraph, table

PAGES = (".html", ".htm", ".md")


class Sheet(NamedTuple):
    """A table with its title; the first `texts` columns are words, the others numbers. `notes` stand below it."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    notes: Sequence[str] = ()


def check_suffix(path: Path) -> None:
    """Refuses a report that is neither a page nor Markdown, before the work is done.

    Raises
    ------
    InputError
        For other endings.
    """
    if path.suffix not in PAGES:
        expected = f"a file that ends in {' or '.join(PAGES)}"
        raise InputError.of("command line", "--report", str(path), expected)


def write(
    path: Path,
    title: str,
    answer: str,
    sheets: Iterable[Sheet],
    chips: Sequence[str] = (),
) -> None:
    """Writes the answer in the format that the suffix says."""
    filled = [sheet for sheet in sheets if sheet.rows or sheet.notes]
    made = as_markdown if path.suffix == ".md" else as_html
    files.write_text(path, made(title, answer, filled, chips))


def as_html(
    title: str, answer: str, sheets: Sequence[Sheet], chips: Sequence[str] = ()
) -> str:
    """The page.

    Examples
    --------
    >>> "<h2" in as_html("Steps", "All is well.", [Sheet("Ranks", ("rank", "step"), [("0", "1 ms")])])
    True
    """
    parts = [
        (f"part{at}", sheet.title, markup(_table(sheet), *map(paragraph, sheet.notes)))
        for at, sheet in enumerate(sheets)
    ]
    return html.page(title, answer, parts, chips=chips)


def _table(sheet: Sheet) -> str:
    return table(sheet.heads, sheet.rows, texts=sheet.texts) if sheet.rows else ""


def as_markdown(
    title: str, answer: str, sheets: Sequence[Sheet], chips: Sequence[str] = ()
) -> str:
    """The same as Markdown."""
    parts = [f"# {title}", answer, *([", ".join(chips)] if chips else [])]
    for sheet in sheets:
        parts.append(f"## {sheet.title}")
        parts += [markdown.table(sheet.heads, sheet.rows)] if sheet.rows else []
        parts += sheet.notes
    return "\n\n".join(parts) + "\n"
