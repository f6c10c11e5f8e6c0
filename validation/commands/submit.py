"""Check measurements that you want to give (JSON lines), predict them, and write the file for a pull request."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.extras import lazily
from prestep.sim.units import format_duration

with lazily():
    from prestep.sim import files
    from prestep.validation import submissions

GROUP = "Trust"


@click.command(
    help=__doc__ + " Exit 1: a row can hardly be true, and nothing is written.",
    epilog="Example: prestep submit rows.jsonl -o lab/cases/submitted/me-2026-03.jsonl",
)
@click.argument("rows", type=click.Path(path_type=Path, dir_okay=False))
@shared.file_option(
    "-o", "--output", text="File to write; without it rows are only checked."
)
@shared.as_json
@shared.explained
def command(rows: Path, output: Path | None, json_: bool) -> None:
    checked = submissions.checked(rows)
    good = not any(one.doubts for one in checked)
    if good and output is not None:
        files.write_text(output, submissions.text(checked))
        shared.talk(f"wrote {output}: add it to a pull request")
    shared.show_result(
        json_,
        lambda: submissions.SCHEMA.row(checked),
        lambda: "\n".join(_lines(checked)),
    )
    if not good:
        shared.talk(
            "nothing is written: mend the rows, or say in the pull request why they are right"
        )
        sys.exit(shared.EXIT_OUTSIDE)


def _lines(rows: Sequence[submissions.Checked]) -> Iterator[str]:
    """A line a row, and its doubts below it."""
    for one in rows:
        measured, predicted = one.measured, one.result.step_time
        times = f"measured {format_duration(measured)}, predicted {format_duration(predicted)}"
        yield f"{one.where}: {times}, {predicted / measured - 1:+.1%}"
        yield from (f"  doubt: {doubt}" for doubt in one.doubts)
