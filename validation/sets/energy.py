"""Sets of steps with watts (`kind = "energy"` in set.toml): mean power of a GPU, and joules of a step.

Rows are those of the harness, with `watts_mean` (W) and `window_step_s` (s of a step while the watts were read).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sim import files, progress
from sim.analysis.energy import Energy
from sim.errors import InputError, Mistake, PrestepError
from sim.predict import predict
from validation.formats.records import text_of
from validation.formats.rows import Row, read_rows
from validation.formats.scenarios import scenario_of
from validation.report.comparison import Comparison, finite
from validation.report.gate import Check, prediction_checks
from validation.report.interface import Point, Skip, Table
from validation.report.summary import Errors, errors_of
from validation.sets.sets import CASES, asked, cluster_of

POWER, ENERGY = "mean power", "energy of a step"
UNITS = {POWER: "W", ENERGY: "J"}
#: Key of set.toml with the limit on the mean error of a kind.
LIMITS = {POWER: "power", ENERGY: "energy"}


@dataclass(frozen=True)
class Case:
    """One figure of one row, W or J of one GPU."""

    name: str
    kind: str
    measured: float
    predicted: float
    error: str = ""

    @property
    def signed(self) -> float:
        return math.nan if self.error else self.predicted / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        signed, predicted = finite(self.signed, self.predicted)
        return {
            "id": self.name,
            "kind": self.kind,
            "measured": self.measured,
            "error": self.error,
            "predicted": predicted,
            "signed_error": signed,
        }


@dataclass(frozen=True)
class EnergyReport(Comparison):
    """All rows of a set; `calibration`: rows that constants were taken from, never judged."""

    name: str
    title: str
    limits: Mapping[str, float]
    cases: tuple[Case, ...]
    calibration: tuple[Case, ...] = ()
    skips: tuple[Skip, ...] = ()
    unit: str = "times"

    @property
    def groups(self) -> dict[str, Errors]:
        pairs = {
            kind: [(case.name, case.signed) for case in self.cases if case.kind == kind]
            for kind in LIMITS
        }
        every = errors_of([pair for kind in pairs.values() for pair in kind])
        return {"all": every} | {kind: errors_of(of) for kind, of in pairs.items()}

    @property
    def checks(self) -> tuple[Check, ...]:
        failed = [case.name for case in self.cases if case.error]
        predicted = prediction_checks(len(self.cases), failed, len(self.skips))
        errors = {kind: self.groups[kind] for kind in LIMITS}
        means = [
            Check(f"{kind}: mean", of.mape, self.limits[kind])
            for kind, of in errors.items()
            if of.n
        ]
        return (*predicted, *means)

    @property
    def case_tables(self) -> Sequence[Table]:
        judged = _table("Judged: nothing was taken from these rows", self.cases)
        if not self.calibration:
            return [judged]
        title = "Constants were taken from these; not judged"
        return [judged, _table(title, self.calibration)]

    @property
    def points(self) -> Sequence[Point]:
        return tuple(
            Point(c.name, c.kind, c.measured, c.predicted, False, error=c.error)
            for c in self.cases
        )

    def figures(self) -> dict[str, Any]:
        return {
            "n": len(self.cases),
            "groups": {name: e.to_json() for name, e in self.groups.items() if e.n},
            "calibration": [case.to_json() for case in self.calibration],
        }


def _table(title: str, cases: Sequence[Case]) -> Table:
    rows = [
        (
            case.name,
            case.kind,
            f"{case.measured:.4g} {UNITS[case.kind]}",
            case.error or f"{case.predicted:.4g} {UNITS[case.kind]}",
            "" if case.error else f"{100 * case.signed:+.1f} %",
        )
        for case in cases
    ]
    return Table(title, ("case", "what", "measured", "predicted", "error"), rows)


def validate_set(
    name: str, rows: str | Path | None = None, jobs: int = 1, cluster: str | None = None
) -> EnergyReport:
    """Predicts what the steps of a set draw, or of other rows in the same format.

    Parameters
    ----------
    cluster
        Where they were measured; default: as set.toml says by the names of files.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    table, paths, title = asked(name, rows)
    cases, skips = _of_files(paths, table["clusters"], cluster)
    fitted: Sequence[Case] = ()
    if rows is None:
        calibration = [CASES / name / file for file in table["calibration"]]
        fitted, _ = _of_files(calibration, table["clusters"], cluster)
    limits = {kind: float(table[key]) for kind, key in LIMITS.items()}
    return EnergyReport(name, title, limits, tuple(cases), tuple(fitted), tuple(skips))


def _of_files(
    paths: Sequence[Path], clusters: Mapping[str, str], cluster: str | None
) -> tuple[list[Case], list[Skip]]:
    cases: list[Case] = []
    skips: list[Skip] = []
    for path in paths:
        where = cluster or cluster_of(path, clusters)
        pairs = list(zip(read_rows(path), _records(path), strict=True))
        for row, record in progress.track(pairs, "rows"):
            if row.error:
                skips.append(Skip(row.name, row.where, row.error))
            else:
                cases += _cases(row, record, where)
    return cases, skips


def _records(path: Path) -> list[dict[str, Any]]:
    return [files.json_of(line) for line in text_of(path).splitlines() if line.strip()]


def _cases(row: Row, record: Mapping[str, Any], cluster: str) -> list[Case]:
    try:
        watts = _positive(row, record, "watts_mean")
        seconds = _positive(row, record, "window_step_s")
    except InputError as error:
        return [Case(row.name, POWER, math.nan, math.nan, str(error))]
    measured = {POWER: watts, ENERGY: watts * seconds}
    try:
        energy = _predict(row, cluster)
    except PrestepError as error:
        text = str(error)
        return [
            Case(row.name, k, value, math.nan, text) for k, value in measured.items()
        ]
    predicted = {POWER: energy.gpu_power, ENERGY: energy.gpu_step_energy}
    return [Case(row.name, k, value, predicted[k]) for k, value in measured.items()]


def _positive(row: Row, record: Mapping[str, Any], key: str) -> float:
    value = record.get(key)
    if isinstance(value, int | float) and math.isfinite(value) and value > 0:
        return float(value)
    raise InputError(Mistake(row.where, key, repr(value), "a number above 0"))


def _predict(row: Row, cluster: str) -> Energy:
    """What prestep says that the step of a row draws."""
    scenario = scenario_of(row)
    there = replace(scenario.cluster, name=cluster)
    energy = predict(replace(scenario, cluster=there)).energy
    if energy is None:
        raise InputError(Mistake(row.where, "", "no watts of its GPU", "[draw]"))
    return energy
