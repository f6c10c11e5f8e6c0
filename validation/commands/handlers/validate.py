"""What `prestep validate` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import EXIT_OUTSIDE, echo_json, talk
from prestep.validation import command as body
from prestep.validation.report import export as table
from prestep.validation.report.gate import Check


def validate(
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


def _explain(worse: Sequence[Check], known_misses: bool, compare: bool) -> None:
    """Says which checks made the gate fail, where the tables alone do not."""
    why = "not among the known misses, or worse" if known_misses else "past tolerance"
    for check in worse:
        if not check.excusable:
            talk(f"{check.name}: {check.detail}")
        elif known_misses or compare:
            talk(f"{why}: {check.name}: {check.value:.4f} (limit {check.limit:.4f})")
