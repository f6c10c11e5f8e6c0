"""Steps in 16, 8 and 4 bits that others printed (``kind = "low_precision"``): rows to scenarios, and comparison."""

from __future__ import annotations

from pathlib import Path

from sim.errors import InputError
from sim.spec.load import parse_scenario
from validation.formats.low_precision_rows import id_of, read, said
from validation.report.published import Case, PublishedReport
from validation.sets.published import Refusal, Run, predict_all
from validation.sets.sets import CASES, asked

NEVER = 2**33  # above any checksum of a group: none is fitted to


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1
) -> PublishedReport:
    """Predicts every row that can be said as a scenario; the others are listed with the reason.

    Raises
    ------
    InputError
        If the file cannot be read or lacks columns.
    """
    table, files, _ = asked(name, rows)
    runs: list[Run] = []
    skips: list[tuple[str, str]] = []
    for row in (row for file in files for row in read(file)):
        try:
            runs.append(_run(row))
        except InputError as error:
            skips.append((id_of(row), "; ".join(str(m) for m in error.mistakes)))
    cases: list[Case] = []
    for run, (time, why) in zip(runs, predict_all(runs, jobs), strict=True):
        if isinstance(why, Refusal):
            skips.append((run.id, why))
        else:
            about = run.id, run.slice, run.id, run.measured
            cases.append(Case(*about, time, why, notes=run.notes, part=NEVER))
    limits, title = CASES / name / "limits.toml", table["title"]
    return PublishedReport(
        name, title, tuple(cases), tuple(skips), rows is None, limits=limits
    )


def _run(row: dict[str, str]) -> Run:
    """A row as a run.

    Raises
    ------
    InputError
        Saying what cannot be said as a scenario.
    """
    one = said(row)
    parse_scenario(dict(one.tables), one.id)
    return Run(one.id, one.part, row, one.tables, one.measured, "", one.assumed)
