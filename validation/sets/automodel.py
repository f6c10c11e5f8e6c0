"""Steps that NeMo Automodel's summary prints (``kind = "automodel"``): rows to scenarios, and comparison."""

from __future__ import annotations

from pathlib import Path

from sim.errors import InputError
from sim.spec.load import parse_scenario
from validation.formats.automodel_rows import group_of, id_of, read, said
from validation.report.published import Case, PublishedReport
from validation.sets.published import Refusal, Run, predict_all
from validation.sets.sets import CASES, asked


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
    runs, skips, groups = [], [], []
    for row in (row for file in files for row in read(file)):
        try:
            runs.append(_run(row))
            groups.append(group_of(row))
        except InputError as error:
            skips.append((id_of(row), "; ".join(str(m) for m in error.mistakes)))
    cases: list[Case] = []
    made = zip(runs, groups, predict_all(runs, jobs), strict=True)
    for run, group, (time, why) in made:
        if isinstance(why, Refusal):
            skips.append((run.id, why))
        else:
            about = run.id, run.slice, group, run.measured
            listed = group in table.get("fitted", ())
            cases.append(Case(*about, time, why, notes=run.notes, listed=listed))
    limits = CASES / name / "limits.toml"
    whole = rows is None
    return PublishedReport(
        name, table["title"], tuple(cases), tuple(skips), whole, limits=limits
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
