"""A user's own measurements beside their predictions: steps of jobs, and what `prestep measure` wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prestep.sim import progress
from prestep.sim.errors import PrestepError
from prestep.sim.predict import predict
from prestep.sim.tools.workers import Workers
from prestep.sim.units import format_duration
from prestep.validation.formats import collective_reader, own_rows
from prestep.validation.formats.own_rows import ALL, LIMIT, Row
from prestep.validation.report.comparison import Comparison
from prestep.validation.report.gate import Check, prediction_checks
from prestep.validation.report.interface import Point, Skip, Table
from prestep.validation.report.summary import Errors, errors_of
from prestep.validation.sets.predict_collective import predict_all
from prestep.validation.sets.sets import asked

NAME = "own"


@dataclass(frozen=True)
class Case:
    """A row and its prediction, s; nan with the reason (`error`) where there is none.

    `alone`: it is held to its limit by itself, and not with its group. `memory`: predicted peaks by rank, bytes.
    """

    row: Row
    predicted: float = math.nan
    interval: tuple[float, float] | None = None
    error: str = ""
    alone: bool = True
    memory: Mapping[int, float] = field(default_factory=dict)

    @property
    def signed_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.row.measured - 1

    @property
    def memory_error(self) -> float | None:
        """Signed error of the measured peak of the fullest rank; None where nobody measured it, or no rank is both."""
        both = self.row.memory.keys() & self.memory.keys()
        fullest = max(both, key=lambda rank: self.row.memory[rank], default=None)
        if fullest is None or not self.row.memory[fullest]:
            return None
        return self.memory[fullest] / self.row.memory[fullest] - 1

    def to_json(self) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self.row.group != ALL:
            more["group"] = self.row.group
        if self.memory_error is not None:
            more["peak_memory_error"] = self.memory_error
        return {
            "id": self.row.name,
            "where": self.row.where,
            **more,
            "measured": self.row.measured,
            "predicted": self.predicted,
            "signed_error": self.signed_error,
            "limit": self.row.limit,
            "interval": self.interval,
            "error": self.error,
        }


@dataclass(frozen=True)
class OwnReport(Comparison):
    """Rows beside their predictions: a step is held to a limit of its own, collectives by the mean of their group."""

    cases: tuple[Case, ...]
    skips: tuple[Skip, ...] = ()
    name: str = NAME
    title: str = "Your measured steps"
    unit: str = "steps"

    @property
    def judged(self) -> list[Case]:
        """Cases that have a prediction."""
        return [case for case in self.cases if not case.error]

    @property
    def memory(self) -> Errors:
        """Errors of peaks of memory, of the cases that measured one."""
        pairs = [(case.row.name, case.memory_error) for case in self.judged]
        return errors_of([(name, error) for name, error in pairs if error is not None])

    @property
    def groups(self) -> dict[str, Errors]:
        named = dict.fromkeys([ALL, *(case.row.group for case in self.judged)])
        groups = {name: self._errors(name) for name in named}
        return groups | ({"peak memory": self.memory} if self.memory.n else {})

    def _errors(self, group: str) -> Errors:
        return errors_of(
            [
                (case.row.name, case.signed_error)
                for case in self.judged
                if group in (ALL, case.row.group)
            ]
        )

    @property
    def checks(self) -> tuple[Check, ...]:
        wrong = [case.row.name for case in self.cases if case.error]
        return (
            *prediction_checks(len(self.cases), wrong, len(self.skips)),
            *self._limits(),
        )

    def _limits(self) -> Iterator[Check]:
        for case in self.judged:
            if case.alone:
                error, row = abs(case.signed_error), case.row
                yield Check(f"error of {row.name}", error, row.limit)
        for group in dict.fromkeys(c.row.group for c in self.judged if not c.alone):
            errors = self._errors(group)
            yield Check(f"{group}: mean", errors.mape, LIMIT, errors.worst_id)
        if memory := self.memory.n and self.memory:
            yield Check("peak memory: worst", memory.worst, LIMIT, memory.worst_id)

    def figures(self) -> dict[str, Any]:
        return {"groups": {name: one.to_json() for name, one in self.groups.items()}}

    @property
    def case_tables(self) -> tuple[Table, ...]:
        head = ("job", "measured", "predicted", "error", "limit", "")
        return (Table(self.title, head, [_cells(case) for case in self.cases]),)

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(
            Point(
                one.row.name,
                one.row.group,
                one.row.measured,
                one.predicted,
                fitted=False,
                error=one.error,
                interval=one.interval,
            )
            for one in self.cases
        )


def _cells(case: Case) -> list[str]:
    row, measured = case.row, format_duration(case.row.measured)
    limit = f"{row.limit:.0%}" if case.alone else ""
    if case.error:
        return [row.name, measured, "-", "-", limit, case.error]
    past = case.alone and abs(case.signed_error) > row.limit
    return [
        row.name,
        measured,
        format_duration(case.predicted),
        f"{case.signed_error:+.1%}",
        limit,
        "past its limit" if past else "",
    ]


def validate_set(
    name: str,
    rows: str | Path | None = None,
    jobs: int = 1,
    cluster: str | None = None,
) -> OwnReport:
    """Predicts the rows of a set that another distribution brings, or other rows, and compares."""
    _, paths, title = asked(name, rows)
    cases: list[Case] = []
    skips: list[Skip] = []
    for path in paths:
        report = validate_own(path, jobs, cluster)
        cases += report.cases
        skips += report.skips
    return OwnReport(tuple(cases), tuple(skips), name, title)


def validate_own(path: Path, jobs: int = 1, cluster: str | None = None) -> OwnReport:
    """Predicts every row, and compares.

    Raises
    ------
    InputError
        With every mistake of the file; a job that is refused is a row without a prediction.
    """
    if own_rows.has_collectives(path):
        return _collectives(path, cluster)
    rows = own_rows.read(path, cluster)
    skips = [Skip(row.name, row.where, row.error) for row in rows if row.error]
    rows = [row for row in rows if not row.error]
    if jobs == 1 or len(rows) < 2:
        made = [*map(_case, progress.track(rows, "rows"))]
    else:
        with Workers(min(jobs, len(rows))) as pool:
            made = [*progress.track(pool.map(_case, rows), "rows", len(rows))]
    return OwnReport(tuple(made), tuple(skips))


def _case(row: Row) -> Case:
    try:
        step = predict(row.scenario)
    except PrestepError as error:
        return Case(row, error=str(error))
    interval = step.uncertainty
    between = None if interval is None else (interval.low, interval.high)
    memory = {rank: memory.total for rank, memory in step.peak_memory.items()}
    return Case(row, step.step_time, between, memory=memory)


def _collectives(path: Path, cluster: str | None) -> OwnReport:
    """Collectives alone and beside kernels; how good each size is, a group of them says."""
    alone, beside = collective_reader.read_lines(path, cluster or "")
    cases: list[Case] = []
    skips: list[Skip] = []
    for one in predict_all(alone, beside):
        where, made = one.row.where, one.prediction
        if one.skip:
            skips.append(Skip(one.name, where, one.skip))
            continue
        row = Row(where, one.name, one.measured, group=one.group)
        cases.append(Case(row, made.time, made.interval, made.error, alone=False))
    title = "Your measured collectives"
    return OwnReport(tuple(cases), tuple(skips), title=title, unit="times")
