"""Compare predictions with the measured cases of SET (`prestep list sets`); exit 1 outside tolerance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from prestep.sim.commands._shared import (
    EXIT_OUTSIDE,
    as_json,
    echo_json,
    explained,
    file_option,
    processes,
    show_page,
    talk,
)
from prestep.sim.extras import lazily

with lazily():
    from prestep.validation import command as body
    from prestep.validation.report import export as table
    from prestep.validation.report import gate

GROUP = "Trust"
#: Files that are written of the reports.
FILES = {
    "--junit": "Write JUnit XML.",
    "--export": "Write measured and predicted steps as one table (.parquet, .csv).",
    "--plot": "Write a scatter plot (PNG).",
    "--markdown": "Write the report as Markdown.",
    "--html": "Write a page with scatter and residual plots, in one file.",
}


def _written(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `FILES` to a command."""
    for name, text in reversed(FILES.items()):
        command = file_option(name, text=text)(command)
    return command


def _comparing(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a comparison with a base to a command."""
    text = "With --compare: exit 1 if any prediction is not the same number."
    command = click.option("--exact", is_flag=True, help=text)(command)
    text = "With --compare: print and judge what moved, not the sets."
    command = click.option("--only-compare", is_flag=True, help=text)(command)
    text = "List what moved since this: a file of --json, or a git revision."
    return click.option("--compare", metavar="FILE|REV", help=text)(command)


@click.command(help=__doc__, epilog="Example: prestep validate h200 --junit h200.xml")
@click.argument("sets", metavar="[SET]...", nargs=-1)
@click.option(
    "--rows",
    type=click.Path(path_type=Path),
    help="Predict these instead, in the format of the set.",
)
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    help="Where rows were measured that do not say it (steps, programs, energy).",
)
@as_json
@_written
@_comparing
@processes("Worker processes.")
@file_option(
    "--known-misses",
    text="Exit 1 only for failed checks that this TOML table does not list, or that grew.",
)
@explained
def command(
    sets: tuple[str, ...],
    rows: Path | None,
    json_: bool,
    jobs: int,
    known_misses: Path | None,
    compare: str | None,
    only_compare: bool,
    exact: bool,
    cluster: str | None = None,
    export: Path | None = None,
    **files: Path | None,
) -> None:
    """Compares, writes the files that are asked for, prints, and exits with 1 where the gate fails."""
    body.check_exact(exact, compare)
    if compare:
        body.check_base(compare)  # before the work, not after
    if export is not None:
        table.check(export, sets or (body.DEFAULT,))
    reports = body.compare(sets, rows, jobs, cluster)
    compared = body.against_base(reports, compare, rows, jobs) if compare else None
    body.write(reports, talk, compared=compared, **files)
    if export is not None:
        talk(f"wrote {table.write(reports, export, rows):,} rows to {export}")
    judged = [] if only_compare and compare else reports
    if json_:
        echo_json(body.as_json(reports, compared))
    else:
        show_page(body.as_text(judged, compared))
    worse = body.worse(judged, known_misses, compared, exact)
    _explain(worse, known_misses is not None, compared is not None)


def _explain(worse: Sequence[gate.Check], known_misses: bool, compared: bool) -> None:
    """Says which checks made the gate fail, where the tables alone do not; exits with 1 where one did."""
    why = "not among the known misses, or worse" if known_misses else "past tolerance"
    for check in worse:
        if not check.excusable:
            talk(f"{check.name}: {check.detail}")
        elif known_misses or compared:
            talk(f"{why}: {check.name}: {check.value:.4f} (limit {check.limit:.4f})")
    sys.exit(EXIT_OUTSIDE if worse else 0)
