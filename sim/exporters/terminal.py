"""The result as a page for a terminal."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prestep.sim import files
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _answers as answers
from prestep.sim.exporters import _words as words
from prestep.sim.exporters._sheets import MEMORY, WARNINGS, sheets_of
from prestep.sim.tables import Sheet
from prestep.sim.units import format_bytes, format_duration, percent

if TYPE_CHECKING:
    from prestep.sim.studies.shared_cluster import Together

SUFFIXES = (".txt",)
WIDEST = 100
_NOTHING = 0.001  # of a step: sharing costs nothing


def render(
    result: Prediction,
    width: int | None = None,
    colour: bool = False,
    remedies: Sequence[str] = (),
) -> str:
    """The page as text of at most `width` columns (default: the terminal's, 100 at most).

    ``remedies``: changes with which a step that does not fit would.
    """
    width = width or min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    lost = result.out_of_memory is not None and not result.out_of_memory.fits
    style = "bold red" if lost else "bold"
    console.print(Text(answers.of_run(result, remedies), style=style))
    console.print(Text(words.title(result)))
    bar = max(8, width - 56)
    for sheet in sheets_of(result):
        if sheet.title:
            console.print()
            console.print(Text(sheet.title, style="bold"))
        colour_of = {WARNINGS: "yellow", MEMORY: style if lost else ""}
        console.print(_body(sheet, colour_of.get(sheet.title, ""), bar))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _what_sharing_costs(together: Together) -> str:
    """The answer: by how much the jobs slow each other."""
    longer = {
        name: result.step_time / together.alone[name] - 1
        for name, result in together.results.items()
    }
    slowed, most = max(longer.items(), key=lambda item: item[1])
    many = f"{len(longer)} jobs on one cluster"
    if most < _NOTHING:
        return f"{many} do not slow each other"
    return f"{many} slow each other, {slowed} most: its step takes {percent(most)} longer than alone"


def render_jobs(together: Together) -> str:
    """Several jobs on one cluster: a page for each, what sharing costs them, and the links they share."""
    lines = [f"{_what_sharing_costs(together)}.", ""]
    width = max(map(len, together.results))
    for name, result in together.results.items():
        alone, step = together.alone[name], result.step_time
        times = f"{format_duration(step)} a step, {format_duration(alone)} alone: {step / alone:.2f} times as long"
        lines.append(f"  {name:{width}}  {times}")
    lines += ["", "Busiest links of the cluster", ""]
    for link in together.links:
        lines.append(
            f"  {link.name}  {percent(link.utilisation)}  {format_bytes(link.bytes)}"
        )
    lines += [f"  ! {note}" for note in together.notes]
    pages = [
        f"[{name}]\n{render(replace(result, links=()))}"
        for name, result in together.results.items()
    ]
    return "\n".join([*lines, "", *pages])


def write(result: Prediction, path: str | Path) -> None:
    """Write the page to a file."""
    files.write_text(path, render(result, WIDEST))


def _body(sheet: Sheet, style: str, bar: int) -> Table:
    """A sheet's rows behind a margin; heads are those of tables whose first column has none."""
    if sheet.notes:
        return _grid([(note,) for note in sheet.notes], ["left"], style)
    columns = max(map(len, (sheet.heads, *sheet.rows)))
    sides = ["left" if at < sheet.texts else "right" for at in range(columns)]
    headed = [sheet.heads] if any(sheet.heads) and not sheet.heads[0] else []
    if not sheet.bars:
        return _grid([*headed, *sheet.rows], sides, style)
    tails = [_bar(one, bar) if isinstance(one, float) else one for one in sheet.bars]
    rows = [(*row, tail) for row, tail in zip(sheet.rows, tails, strict=True)]
    return _grid([*headed, *rows], [*sides[: len(sheet.rows[0])], "left"], style)


def _grid(rows: Iterable[Sequence[str]], sides: Sequence[str], style: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for side in ("left", *sides):
        table.add_column(justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row("", *(Text(cell, style=style) for cell in row))
    return table


def _bar(share: float, width: int) -> str:
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
