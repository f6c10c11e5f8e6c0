"""Compare predictions with the measured cases of SET (`prestep list sets`); exit 1 outside tolerance."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from prestep.sim.commands._shared import (
    EXIT_OUTSIDE,
    as_json,
    echo_json,
    explained,
    file_option,
    show_page,
    talk,
)
from prestep.sim.extras import lazily

with lazily():
    from prestep.validation import command as body
    from prestep.validation.report import export as table
    from prestep.validation.report import gate

GROUP = "Trust"


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
@file_option("--junit", text="Write JUnit XML.")
@file_option(
    "--export",
    text="Write measured and predicted steps as one table (.parquet, .csv).",
)
@file_option("--plot", text="Write a scatter plot (PNG).")
@file_option("--markdown", text="Write the report as Markdown.")
@file_option(
    "--html", text="Write a page with scatter and residual plots, in one file."
)
@click.option(
    "--compare",
    metavar="FILE|REV",
    help="List what moved since this: a file of --json, or a git revision.",
)
@click.option(
    "--only-compare",
    is_flag=True,
    help="With --compare: print and judge what moved, not the sets.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="With --compare: exit 1 if any prediction is not the same number.",
)
@click.option(
    "--jobs",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Worker processes.",
)
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
    judged = [] if only_compare and compare else reports
    body.write(reports, talk, compared=compared, **files)
    if export is not None:
        talk(f"wrote {table.write(reports, export, rows):,} rows to {export}")
    if json_:
        echo_json(body.as_json(reports, compared))
    else:
        show_page(body.as_text(judged, compared))
    worse = body.worse(judged, known_misses, compared, exact)
    _explain(worse, bool(known_misses), bool(compare))
    sys.exit(EXIT_OUTSIDE if worse else 0)


def _explain(worse: Sequence[gate.Check], known_misses: bool, compare: bool) -> None:
    """Says which checks made the gate fail, where the tables alone do not."""
    why = "not among the known misses, or worse" if known_misses else "past tolerance"
    for check in worse:
        if not check.excusable:
            talk(f"{check.name}: {check.detail}")
        elif known_misses or compare:
            talk(f"{why}: {check.name}: {check.value:.4f} (limit {check.limit:.4f})")
