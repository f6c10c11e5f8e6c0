"""Sets of published tables with columns of their own (`kind = "table"` in set.toml).

`format` names a module of `lab.formats`: `read(path)` gives rows, `parse_row(row)` the `MeasuredStep` of one, and
`id_of(row)` its name where it is none.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from pathlib import Path

from lab.formats.csv_rows import MeasuredStep
from lab.report.published import PublishedReport
from lab.sets.published import Run, report_on
from prestep.sim.errors import InputError
from prestep.sim.spec.load import parse_scenario
from prestep.validation.sets.sets import asked


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
    fitted = table.get("fitted", ())
    module = importlib.import_module(f"lab.formats.{table['format']}")
    runs: list[Run] = []
    skips: list[tuple[str, str]] = []
    for row in (row for file in files for row in module.read(file)):
        try:
            runs.append(_run(row, module.parse_row(row), fitted))
        except InputError as error:
            skips.append((module.id_of(row), "; ".join(map(str, error.mistakes))))
    return report_on(name, runs, skips, rows is None, jobs)


def _run(row: Mapping[str, str], step: MeasuredStep, fitted: Collection[str]) -> Run:
    """A row as a run; raises InputError if its scenario has mistakes."""
    parse_scenario(dict(step.tables), step.id)
    return Run(
        *(step.id, step.slice, row, step.tables, step.measured),
        assumed=step.incomplete,
        notes=step.assumed,
        group=step.group,
        listed=step.group in fitted,
    )
