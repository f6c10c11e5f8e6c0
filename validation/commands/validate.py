"""Compare predictions with the measured cases of SET (`prestep list sets`) or of --rows; exit 1 outside tolerance."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.extras import lazily

with lazily():
    from prestep.validation import command as body
    from prestep.validation.report import baseline, gate

GROUP = "Trust"
#: Files that are written of the reports.
FILES = {
    "--junit": "Write JUnit XML.",
    "--markdown": "Write the report as Markdown.",
    "--html": "Write a page with scatter and residual plots, in one file.",
}


#: Options of a comparison with a base.
_COMPARING = shared.together(
    click.option(
        "--compare",
        type=click.Path(dir_okay=False, path_type=Path),
        help="List what moved since this file of --json.",
    ),
    click.option(
        "--only-compare",
        is_flag=True,
        help="With --compare: print and judge what moved, not the sets.",
    ),
    click.option(
        "--exact",
        is_flag=True,
        help="With --compare: exit 1 if any prediction is not the same number.",
    ),
)


#: Other rows, and where they were measured.
_ROWS = shared.together(
    click.option(
        "--rows",
        type=click.Path(path_type=Path),
        help="Predict these: jobs and their times (CSV), rows of `prestep measure`, or of SET.",
    ),
    click.option(
        "--cluster",
        metavar="NAME|FILE",
        help="Where rows were measured that do not say it (steps, programs, energy).",
    ),
)


@click.command(
    help=__doc__, epilog="Example: prestep validate --rows steps.csv --junit steps.xml"
)
@click.argument("sets", metavar="[SET]...", nargs=-1)
@_ROWS
@shared.as_json
@shared.options(FILES, type=click.Path(dir_okay=False, path_type=Path))
@_COMPARING
@shared.processes("Worker processes.")
@shared.file_option(
    "--known-misses",
    text="Exit 1 only for failed checks that this TOML table does not list, or that grew.",
)
@shared.explained
def command(
    sets: tuple[str, ...],
    rows: Path | None,
    json_: bool,
    jobs: int,
    known_misses: Path | None,
    compare: Path | None,
    only_compare: bool,
    exact: bool,
    cluster: str | None,
    **files: Path | None,
) -> None:
    """Compares, writes the files that are asked for, prints, and exits with 1 where the gate fails."""
    _check(exact, compare)
    reports = body.compare(sets, rows, jobs, cluster)
    compared = body.against_base(reports, compare) if compare else None
    body.write(reports, shared.talk, compared=compared, **files)
    judged = [] if only_compare and compare else reports
    shared.show_result(
        json_,
        lambda: body.as_json(reports, compared),
        lambda: body.as_text(judged, compared),
    )
    _finish(body.worse(judged, known_misses, compared, exact), known_misses, compare)


def _check(exact: bool, compare: Path | None) -> None:
    """Refuses options that cannot be done, before the work."""
    if exact and not compare:
        found, expected = "no --compare", "--compare FILE beside it"
        raise shared.misused("--exact", found, expected)
    if compare:
        baseline.read(compare)


def _finish(
    worse: Sequence[gate.Check], known_misses: Path | None, compare: Path | None
) -> None:
    """Says which checks made the gate fail, where the tables alone do not; exits with 1 where one did."""
    why = "not among the known misses, or worse" if known_misses else "past tolerance"
    for check in worse:
        if not check.excusable:
            shared.talk(f"{check.name}: {check.detail}")
        elif known_misses or compare:
            shared.talk(
                f"{why}: {check.name}: {check.value:.4f} (limit {check.limit:.4f})"
            )
    sys.exit(shared.EXIT_OUTSIDE if worse else 0)
