"""Sets of steps with a change (`kind = "changes"`): judged as steps are, and by their ratios to the step without it.

Rows may be of jobs that ran together (`lab.formats.shared_jobs`). `bases` in set.toml are rows that ratios are formed
with, and that are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab.formats.configurations import of_step
from lab.formats.shared_jobs import JobRow, paired, scenario_of
from lab.formats.step_times import spread_of
from lab.report.step_cases import Case, Prediction
from lab.report.steps import Report
from lab.report.tolerances import Tolerances
from lab.sets import steps
from lab.sets.ratios import base_of, by_step
from lab.sets.step_sets import load_set
from lab.sets.steps import Predict
from prestep.sim.analysis import prediction
from prestep.sim.predict import predict as predicted
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies import shared_cluster
from prestep.validation.formats.rows import Row, read_rows
from prestep.validation.report.gate import Check
from prestep.validation.report.interface import Cells, Table
from prestep.validation.report.summary import Errors
from prestep.validation.sets.sets import folder_of, set_table

RATIOS = "Step times over those of the same step without the change"
RATIO_HEAD = ("case", "base", "measured", "predicted", "error", "")


@dataclass(frozen=True)
class Base:
    """The same step without the change that a row is about: what its ratio is formed with."""

    row: Row
    prediction: Prediction
    noisy: bool


@dataclass(frozen=True)
class ChangedCase(Case):
    """A row, its prediction, and its base where it has one."""

    base: Base | None = None

    @property
    def measured_ratio(self) -> float:
        """Step time over that of the base; nan without one."""
        return self.row.measured / self.base.row.measured if self.base else math.nan

    @property
    def predicted_ratio(self) -> float:
        if self.base is None:
            return math.nan
        return self.prediction.step_time / self.base.prediction.step_time

    @property
    def ratio_error(self) -> float:
        """Signed error of the ratio, as a share of the measured one."""
        return self.predicted_ratio / self.measured_ratio - 1

    @property
    def steady_ratio_error(self) -> float | None:
        """The same where neither step is noisy; None without a base."""
        noisy = self.base is None or self.noisy or self.base.noisy
        return None if noisy else self.ratio_error

    def to_json(self) -> dict[str, Any]:
        if self.base is None:
            return super().to_json()
        ratios = {
            "measured_ratio": self.measured_ratio,
            "predicted_ratio": self.predicted_ratio,
            "ratio_error": self.ratio_error,
        }
        told = {key: v if math.isfinite(v) else None for key, v in ratios.items()}
        return {**super().to_json(), "base": self.base.row.name, **told}


@dataclass(frozen=True)
class ChangesReport(Report):
    """The comparison of a set of steps with a change. `ratio_worst`: the largest error of a ratio."""

    cases: tuple[ChangedCase, ...]
    ratio_worst: float = math.inf

    @property
    def ratios(self) -> Errors:
        """Errors of the ratios of rows to their bases, where neither is noisy."""
        return self._errors_of(lambda case: case.steady_ratio_error)  # type: ignore[attr-defined]

    @property
    def groups(self) -> dict[str, Errors]:
        own = {"ratio to base": self.ratios} if self.ratios.n else {}
        return {**super().groups, **own}

    @property
    def case_tables(self) -> Sequence[Table]:
        ratios = [_ratio_cells(case, case.base) for case in self.cases if case.base]
        tables = [*super().case_tables]
        return [*tables, Table(RATIOS, RATIO_HEAD, ratios)] if ratios else tables

    @property
    def checks(self) -> tuple[Check, ...]:
        if not self.ratios.n:
            return super().checks
        worst, limit = self.ratios.worst, self.ratio_worst
        ratio = Check("ratio to base: worst", worst, limit, self.ratios.worst_id)
        return (*super().checks, ratio)

    def figures(self) -> dict[str, Any]:
        own = {"ratios": self.ratios.to_json()} if self.ratios.n else {}
        return {**super().figures(), **own}


def _ratio_cells(case: ChangedCase, base: Base) -> Cells:
    noisy = "noisy" if case.noisy or base.noisy else ""
    told = [
        f"{case.measured_ratio:.3f}",
        f"{case.predicted_ratio:.3f}",
        f"{case.ratio_error:+.1%}",
    ]
    return case.row.name, base.row.name, *told, noisy


def validate_set(
    name: str,
    rows: str | Path | None = None,
    jobs: int = 1,
    predict: Predict | None = None,
) -> ChangesReport:
    """Predicts the rows of a set, or other rows in its format, with their bases, and compares.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    table, base = set_table(name), load_set(set_table(name)["base"])
    limits = Tolerances.read(folder_of(name) / "tolerances.toml")
    own, others = (
        [row for file in files for row in paired(read_rows(base.folder / file))]
        for files in (table["rows"], table["bases"])
    )
    measured = own if rows is None else paired(read_rows(rows))
    predictable, skipped = steps.sort(measured, scenario_of)
    bases = _bases(predictable, [*measured, *own, *others])
    every = [*predictable, *(row for row in bases if row is not None)]
    work = partial(predict_row, predict=predict)
    made = steps.predict_all(every, jobs, work, question_of)
    predictions = dict(zip(map(question_of, every), made, strict=True))
    spread = limits.noisy_spread
    cases = _cases(predictable, bases, predictions, base.fitted, spread)
    whole, title = rows is None, table["title"] if rows is None else ""
    worst = table["ratio_worst"]
    return ChangesReport(name, cases, limits, skipped, whole, title, worst)


def _cases(
    rows: Sequence[JobRow],
    bases: Sequence[JobRow | None],
    predictions: Mapping[str, Prediction],
    fitted: Collection[str],
    spread: float,
) -> tuple[ChangedCase, ...]:
    """Rows beside their predictions, and beside the same of the row that each is a ratio to."""

    def about(row: JobRow) -> tuple[JobRow, Prediction]:
        return row, predictions[question_of(row)]

    return tuple(
        ChangedCase(
            *about(row),
            fitted=of_step(row) in fitted,
            noisy=spread_of(row) > spread,
            base=None if base is None else Base(*about(base), spread_of(base) > spread),
        )
        for row, base in zip(rows, bases, strict=True)
    )


def _bases(rows: Sequence[JobRow], among: Sequence[JobRow]) -> list[JobRow | None]:
    """The base of every row that has one which can be predicted; rows of its own file come first."""
    by_file: dict[str, list[JobRow]] = {}
    for row in among:
        by_file.setdefault(row.where.rpartition(":")[0], []).append(row)
    own = {file: by_step(mine) for file, mine in by_file.items()}
    every = by_step(among)
    bases = [
        base_of(row, own[row.where.rpartition(":")[0]]) or base_of(row, every)
        for row in rows
    ]
    found = [row for row in bases if row is not None]
    predictable, _ = steps.sort(found, scenario_of)
    questions = set(map(question_of, predictable))
    return [
        row if row is not None and question_of(row) in questions else None
        for row in bases
    ]


def predict_row(row: JobRow, predict: Predict | None = None) -> Prediction:
    """The prediction of a row."""
    return steps.prediction_of(lambda: _step(scenario_of(row), predict))


def _step(scenario: Scenario, predict: Predict | None) -> prediction.Prediction:
    """The step of the row's own job, the first of a scenario, with those beside it at work."""
    if scenario.jobs:
        return shared_cluster.predict(scenario).results[scenario.jobs[0].name]
    return (predict or predicted)(scenario)


def question_of(row: JobRow) -> str:
    """As of steps; jobs that ran together stand alone."""
    return steps.question_of(row) + (row.where if row.beside else "")
