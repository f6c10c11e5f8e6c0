"""A command's answer as one page or as Markdown: the answer, what was run, and tables; for commands without a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prestep.sim import __version__, files
from prestep.sim.errors import InputError
from prestep.sim.extras import lazily
from prestep.sim.tables import Sheet

with lazily():
    from prestep.sim import markup
    from prestep.sim.exporters import html, markdown

if TYPE_CHECKING:
    from prestep.sim.spec.sections import Scenario

PAGES = (".html", ".htm", ".md")


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


def asked(
    scenario: Scenario | None, overrides: Sequence[str] = (), batch: int | None = None
) -> list[str]:
    """What many runs have in common, in short pieces: cluster, model, settings, changes and the version."""
    pieces = []
    if scenario is not None:
        cluster, model, training = scenario.cluster, scenario.model, scenario.training
        size = ((cluster.hosts, "hosts"), (cluster.gpus, "GPUs"))
        pieces += [cluster.name or Path(cluster.file or "").stem]
        pieces += [f"{number:,} {what}" for number, what in size if number]
        pieces += [model.name or Path(model.file or "").name or model.kind or ""]
        pieces += [f"sequences of {training.seq_len} tokens"]
        batch = batch or training.global_batch
        pieces += [f"global batch {batch}" if batch else ""]
        pieces += [training.framework, training.precision]
    return [*filter(None, pieces), *overrides, f"prestep {__version__}"]


def write(
    path: Path,
    title: str,
    answer: str,
    sheets: Iterable[Sheet],
    chips: Sequence[str] = (),
    first: tuple[str, str] = ("", ""),
) -> None:
    """Writes the answer in the format that the suffix says; `first` is a section of HTML, which Markdown leaves out."""
    filled = [sheet for sheet in sheets if sheet.rows or sheet.notes]
    if path.suffix == ".md":
        text = as_markdown(title, answer, filled, chips)
    else:
        text = as_html(title, answer, filled, chips, first)
    files.write_text(path, text)


def as_html(
    title: str,
    answer: str,
    sheets: Sequence[Sheet],
    chips: Sequence[str] = (),
    first: tuple[str, str] = ("", ""),
    lost: bool = False,
) -> str:
    """The page; its answer is red where something is ``lost``.

    Examples
    --------
    >>> "<h2" in as_html("Steps", "All is well.", [Sheet("Ranks", ("rank", "step"), [("0", "1 ms")])])
    True
    """
    parts = [("first", *first)]
    for at, sheet in enumerate(sheets):
        body = markup.markup(_table(sheet), *map(markup.paragraph, sheet.notes))
        parts.append((f"part{at}", sheet.title, body))
    return html.page(title, answer, parts, chips=chips, lost=lost)


def _table(sheet: Sheet) -> str:
    if not sheet.rows:
        return ""
    return markup.table(sheet.heads, sheet.rows, texts=sheet.texts)


def as_markdown(
    title: str, answer: str, sheets: Sequence[Sheet], chips: Sequence[str] = ()
) -> str:
    """The same as Markdown."""
    parts = [f"# {title}", answer, ", ".join(chips), *markdown.parts(sheets)]
    return "\n\n".join(filter(None, parts)) + "\n"
