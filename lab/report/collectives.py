"""The comparison of collectives: cases, their slices, the limits, and the report that the writers read."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lab.report.judged import JudgedComparison
from prestep.sim import schema
from prestep.sim.units import format_duration
from prestep.validation.report.gate import Check, predicted_check, rows_check
from prestep.validation.report.interface import Cells, Point, Skip
from prestep.validation.report.summary import Errors, errors_of
from prestep.validation.sets.predict_collective import Prediction

FIGURES = ("mean", "median", "p90")
#: What a limits.toml may say: figures by slice.
LIMITS = schema.Named(schema.Table(dict.fromkeys(FIGURES, schema.Number(above=True))))


@dataclass(frozen=True)
class Case:
    """A measured time and its prediction, s. `fitted`: some constant was taken from it."""

    name: str
    where: str
    slice: str
    op: str
    ranks: int
    size: int
    measured: float
    prediction: Prediction
    fitted: bool
    ignored: tuple[str, ...] = ()

    @property
    def signed_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.prediction.time / self.measured - 1

    @property
    def point(self) -> Point:
        return Point(
            *(self.name, self.slice, self.measured),
            predicted=self.prediction.time,
            fitted=self.fitted,
            error=self.prediction.error,
            interval=self.prediction.interval,
        )

    @property
    def cells(self) -> Cells:
        made = self.prediction
        measured = (self.name, self.slice, format_duration(self.measured))
        if made.error:
            return (*measured, "none", "", "", made.error)
        ignored = f"ignored {', '.join(self.ignored)}" if self.ignored else ""
        runs = f"{made.algo} {made.proto}, {made.channels}"
        time, error = format_duration(made.time), f"{self.signed_error:+.1%}"
        return (*measured, time, error, runs, ignored)

    def to_json(self) -> dict[str, Any]:
        made = self.prediction
        return {
            "id": self.name,
            "where": self.where,
            "slice": self.slice,
            "op": self.op,
            "ranks": self.ranks,
            "bytes": self.size,
            "measured": self.measured,
            "predicted": made.time,
            "signed_error": self.signed_error,
            "fitted": self.fitted,
            "algo": made.algo,
            "proto": made.proto,
            "channels": made.channels,
            "evidence": made.evidence,
            "notes": list(made.notes),
            "ignored": list(self.ignored),
            "error": made.error,
            "interval": made.interval,
        }


@dataclass(frozen=True)
class Limits:
    """Largest errors by slice and figure (mean, median, p90), as shares of the measured value.

    `*` in a key stands for any text; the longest key that fits a slice counts. Slices without a limit are reported
    and not judged.
    """

    table: Mapping[str, Mapping[str, float]]

    @classmethod
    def read(cls, path: Path) -> Limits:
        """The limits of a limits.toml; raises with every mistake in it."""
        return cls(schema.read(path, LIMITS, "a set's limits.toml"))

    def of(self, slice_: str) -> Mapping[str, float]:
        fits = [key for key in self.table if fnmatchcase(slice_, key)]
        return self.table[max(fits, key=len)] if fits else {}


@dataclass(frozen=True)
class CollectiveReport(JudgedComparison):
    """All cases of a set, and the rows that were not compared (`skips`)."""

    name: str
    title: str
    cases: tuple[Case, ...]
    limits: Limits
    skips: tuple[Skip, ...] = ()
    unit: str = "times"

    head = ("case", "slice", "measured", "predicted", "error", "runs as", "")
    titles = (
        "Rows that no constant was taken from",
        "Rows that some constant was taken from (set.toml)",
    )

    def select(self, slice_: str | None = None, fitted: bool | None = None) -> Errors:
        """Errors of the predicted cases of a slice, fitted or not (None: all)."""
        return errors_of(
            [(case.name, case.signed_error) for case in self._chosen(slice_, fitted)]
        )

    def _chosen(self, slice_: str | None, fitted: bool | None) -> list[Case]:
        return [
            case
            for case in self.cases
            if not case.prediction.error
            and slice_ in (None, case.slice)
            and fitted in (None, case.fitted)
        ]

    @property
    def slices(self) -> tuple[str, ...]:
        return tuple(sorted({case.slice for case in self.cases}))

    @property
    def groups(self) -> dict[str, Errors]:
        groups = {
            "all": self.select(),
            "predicted": self.select(fitted=False),
            "fitted": self.select(fitted=True),
        }
        for name in self.slices:
            parts = {"": None, ", held out": False, ", fitted": True}
            mine = {
                f"{name}{tail}": self.select(name, fitted)
                for tail, fitted in parts.items()
            }
            mixed = mine[f"{name}, held out"].n and mine[f"{name}, fitted"].n
            groups |= mine if mixed else {name: mine[name]}
        return groups

    @property
    def unpredicted(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.prediction.error)

    @property
    def checks(self) -> tuple[Check, ...]:
        """That there are rows and all were predicted; then every figure of a slice that has a limit.

        Where constants were taken from a part of a slice, the other part is held to the same limit by itself.
        """
        unpredicted = [case.name for case in self.unpredicted]
        parts = {
            name: self._parts(name) for name in self.slices if self.limits.of(name)
        }
        judged = sum(len(of[name]) for name, of in parts.items())
        left_out = {
            "skipped": len(self.skips),
            "not predicted": len(unpredicted),
            "without a limit (small messages, other machines, or fitted to)": len(
                self._chosen(None, None)
            )
            - judged,
        }
        checks = [rows_check(judged, left_out), predicted_check(unpredicted)]
        for name, of in parts.items():
            for part, cases in of.items():
                checks += [
                    _check(part, figure, limit, cases)
                    for figure, limit in self.limits.of(name).items()
                    if cases
                ]
        return tuple(checks)

    def _parts(self, slice_: str) -> dict[str, list[Case]]:
        """The cases of a slice that its limits are for, by the name of the check; the whole of them comes first."""
        held, all_ = self._chosen(slice_, False), self._chosen(slice_, None)
        # Other machines: what a constant was fitted to says nothing of the node counts it was not fitted to.
        if "mean" not in self.limits.of(slice_):
            return {slice_: held}
        mixed = 0 < len(held) < len(all_)
        return {slice_: all_, f"{slice_}, held out": held} if mixed else {slice_: all_}

    def figures(self) -> dict[str, Any]:
        return {
            **self.select().to_json(),
            "slices": {name: self.select(name).to_json() for name in self.slices},
            "fitted": self.select(fitted=True).to_json(),
            "predicted": self.select(fitted=False).to_json(),
            "skipped_by_reason": dict(Counter(skip.reason for skip in self.skips)),
        }


def _check(name: str, figure: str, limit: float, cases: Sequence[Case]) -> Check:
    errors = [abs(case.signed_error) for case in cases]
    worst = max(cases, key=lambda case: abs(case.signed_error))
    if not all(map(math.isfinite, errors)):
        return Check(f"{name}: {figure}", float("nan"), limit, worst.name)
    value = _FIGURES[figure](errors)
    return Check(
        f"{name}: {figure}",
        value,
        limit,
        f"worst {worst.signed_error:+.1%}: {worst.name}",
    )


def _p90(values: Sequence[float]) -> float:
    """The smallest value that at least nine tenths do not exceed."""
    return sorted(values)[math.ceil(0.9 * len(values)) - 1]


_FIGURES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "p90": _p90,
}
