"""The result as a page for a terminal."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prestep.sim import files
from prestep.sim.analysis.critical_path import CriticalPath, path_part
from prestep.sim.analysis.effects import pages_of
from prestep.sim.analysis.evidence import of_others
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters import _answers as answers
from prestep.sim.exporters import _words as words
from prestep.sim.extras import lazily
from prestep.sim.units import format_bytes, format_duration, percent

with lazily():
    from prestep.sim.exporters import _sections as sections_of

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
    for heading, body in _sections(result, width):
        if heading:
            console.print()
            console.print(Text(heading, style="bold"))
        console.print(body)
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


def _sections(result: Prediction, width: int) -> list[tuple[str, Table]]:
    """(heading, body) of what the result has; the first has no heading."""
    bar = max(8, width - 56)
    sections = [("", _grid(words.headline(result)))]
    if result.breakdown:
        sections.append(("Where the step goes", _breakdown(result, bar)))
    path = result.critical_path
    if path is not None and path.segments:
        sections.append(("Critical path through all ranks", _critical(path)))
    if result.peak_memory:
        sections.append(("Memory", _memory(result, bar)))
    if result.links:
        sections.append(("Busiest links", _links(result)))
    return sections + _extras(result) + _grounds(result)


def _extras(result: Prediction) -> list[tuple[str, Table]]:
    """What a scenario may ask for beside the step."""
    sections = []
    if result.host is not None:
        rows = list(sections_of.host(result.host, result.step_time))
        sections.append(("What the host decides", _grid(rows)))
    sections += [(title, _grid(rows)) for title, rows in pages_of(result.effects)]
    if result.cost is not None:
        rows = list(words.energy(result, result.cost))
        sections.append(("Power and cost", _grid(rows)))
    if result.replicas is not None:
        sections.append(
            ("The step with noise", _grid(sections_of.noise(result.replicas)))
        )
    return sections


def _grounds(result: Prediction) -> list[tuple[str, Table]]:
    """What the times rest on, and what the reader is warned of."""
    sections = []
    if result.evidence:
        grades = result.evidence.items()
        line = ", ".join(f"{grade} {percent(share)}" for grade, share in grades)
        lines = [(line,)]
        if others := of_others(result.tables):
            lines.append((f"times of kernels: {others}",))
        sections.append(("The step rests on constants that are", _grid(lines)))
    if result.fallbacks:
        heading = "Fallbacks: not covered by a measurement or a fit"
        sections.append((heading, _fallbacks(result)))
    if result.warnings:
        rows = [("!", warning) for warning in result.warnings]
        sections.append(("Warnings", _grid(rows, style="yellow")))
    return sections


def _table(*justify: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for side in justify:
        table.add_column(justify=side, overflow="fold")  # type: ignore[arg-type]
    return table


def _grid(rows: object, style: str = "") -> Table:
    listed = [tuple(row) for row in rows]  # type: ignore[attr-defined]
    table = _table(*["left"] * (1 + max((len(row) for row in listed), default=0)))
    for row in listed:
        table.add_row("", *(Text(cell, style=style) for cell in row))
    return table


def _bar(share: float, width: int) -> str:
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def _breakdown(result: Prediction, bar: int) -> Table:
    table = _table("left", "left", "right", "right", "left")
    for name, seconds, share in words.shares(result):
        table.add_row(
            "", name, format_duration(seconds), percent(share), _bar(share, bar)
        )
    return table


def _critical(path: CriticalPath, most: int = 5) -> Table:
    """Its longest parts: what would have to be faster for the step to be."""
    table = _table("left", "left", "right", "right")
    parts = path.parts()
    for part in parts[:most]:
        table.add_row(
            "",
            path_part(part),
            format_duration(part["seconds"]),
            percent(part["share"]),
        )
    if rest := parts[most:]:
        seconds = sum(part["seconds"] for part in rest)
        table.add_row(
            "",
            f"{len(rest)} more",
            format_duration(seconds),
            percent(seconds / path.length),
        )
    return table


def _memory(result: Prediction, bar: int) -> Table:
    verdict = result.out_of_memory
    table = _table("left", "left", "right", "right", "left")
    if verdict is not None:
        whole = max(verdict.needed, verdict.capacity or 0.0) or 1.0
        for owner, size in words.memory(result):
            table.add_row(
                "",
                owner,
                format_bytes(size),
                percent(size / whole),
                _bar(size / whole, bar),
            )
    outer = _table("left")
    outer.add_row(
        Text(
            "  " + words.memory_verdict(result),
            style="" if verdict and verdict.fits else "bold red",
        )
    )
    outer.add_row(table)
    blocks = _table("left", "left", "right")
    for name, size in words.allocator(result):
        blocks.add_row("", name, format_bytes(size))
    if blocks.row_count:
        outer.add_row(blocks)
    return outer


def _fallbacks(result: Prediction, most: int = 5) -> Table:
    table = _table("left", "left", "left", "right", "right")
    for f in result.fallbacks[:most]:
        table.add_row("", f.what, f.grade, f"{f.count} x", percent(f.share))
    if len(result.fallbacks) > most:
        rest = result.fallbacks[most:]
        table.add_row(
            "", f"{len(rest)} more", "", "", percent(sum(f.share for f in rest))
        )
    return table


def _links(result: Prediction) -> Table:
    priced = any(link.shadow_price is not None for link in result.links)
    table = _table("left", "left", "right", "right", "right", "left")
    heads = (
        "busy",
        "carried",
        "1 % faster saves" if priced else "",
        "in the last step" if result.link_loads else "",
    )
    table.add_row("", "", *heads)
    for row, names in _alike(result).items():
        table.add_row("", names[0], *row)
        if len(names) > 1:
            table.add_row("", f"  {len(names) - 1} more like it")
    for kind in result.link_kinds:
        if kind.shadow_price:
            price, held = words.price(kind.shadow_price), format_duration(kind.held)
            full = f"full for {held} of the step" if kind.held > 0 else ""
            told = ": ".join(text for text in (full, kind.cause) if text)
            table.add_row(
                "",
                f"all {kind.links} of {kind.kind}",
                "",
                format_bytes(kind.bytes),
                price,
                told,
            )
    return table


def _alike(result: Prediction) -> dict[tuple[str, ...], list[str]]:
    """The busiest links by what their row says: of those that say the same, the first is shown."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for link in result.links:
        row = (
            percent(link.utilisation),
            format_bytes(link.bytes),
            words.saved(link),
            _spark(link.profile),
        )
        rows.setdefault(row, []).append(link.name)
    return rows


def _spark(profile: tuple[float, ...]) -> str:
    """A share over time as a row of bars, two parts to a column."""
    pairs = [max(profile[at : at + 2]) for at in range(0, len(profile), 2)]
    return "".join(" ▁▂▃▄▅▆▇█"[round(min(1.0, share) * 8)] for share in pairs).rstrip()
