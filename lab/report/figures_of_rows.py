"""Comparisons of a few figures of every row (a stall, watts, joules), beside rows that constants were taken from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prestep.sim import progress
from prestep.sim.units import format_duration
from prestep.validation.report.comparison import Comparison
from prestep.validation.report.gate import Check, prediction_checks
from prestep.validation.report.interface import Point, Skip, Table
from prestep.validation.report.summary import Errors, errors_of
from prestep.validation.sets.sets import asked, folder_of

#: A figure of a kind with its unit.
Show = Callable[[str, float], str]


@dataclass(frozen=True)
class Figure:
    """One figure of one row, SI units."""

    name: str
    kind: str
    measured: float
    predicted: float
    error: str = ""

    @property
    def signed(self) -> float:
        if self.error:
            return math.nan
        return (self.predicted - self.measured) / self.measured

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "kind": self.kind,
            "measured": self.measured,
            "error": self.error,
            "predicted": None if self.error else self.predicted,
            "signed_error": self.signed,
        }


@dataclass(frozen=True)
class FiguresReport(Comparison):
    """All rows of a set; `limits` by kind; `calibration`: rows that constants were taken from, never judged.

    `worst`: whether the worst error of each kind is held to its limit, not the mean.
    """

    name: str
    title: str
    limits: Mapping[str, float]
    cases: tuple[Figure, ...]
    calibration: tuple[Figure, ...] = ()
    skips: tuple[Skip, ...] = ()
    unit: str = "times"
    show: Show = lambda _, seconds: format_duration(seconds)
    worst: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of figures that are judged: those with a limit."""
        return tuple(self.limits)

    def _check(self, kind: str, errors: Errors) -> Check:
        """What the errors of a kind, at least one, are held to."""
        limit = self.limits[kind]
        if self.worst:
            return Check(f"{kind}: worst", errors.worst, limit, errors.worst_id)
        return Check(f"{kind}: mean", errors.mape, limit)

    @property
    def groups(self) -> dict[str, Errors]:
        pairs = {
            kind: [(case.name, case.signed) for case in self.cases if case.kind == kind]
            for kind in self.kinds
        }
        every = errors_of([pair for of_kind in pairs.values() for pair in of_kind])
        return {"all": every} | {kind: errors_of(of) for kind, of in pairs.items()}

    @property
    def checks(self) -> tuple[Check, ...]:
        failed = [case.name for case in self.cases if case.error]
        predicted = prediction_checks(len(self.cases), failed, len(self.skips))
        errors = {kind: self.groups[kind] for kind in self.kinds}
        judged = [self._check(kind, of) for kind, of in errors.items() if of.n]
        return (*predicted, *judged)

    @property
    def case_tables(self) -> Sequence[Table]:
        judged = self._table("Judged: nothing was taken from these rows", self.cases)
        if not self.calibration:
            return [judged]
        title = "Constants were taken from these; not judged"
        return [judged, self._table(title, self.calibration)]

    def _table(self, title: str, cases: Sequence[Figure]) -> Table:
        rows = [
            (
                case.name,
                case.kind,
                self.show(case.kind, case.measured),
                case.error or self.show(case.kind, case.predicted),
                "" if case.error else f"{100 * case.signed:+.1f} %",
            )
            for case in cases
        ]
        return Table(title, ("case", "what", "measured", "predicted", "error"), rows)

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


def report_on(
    name: str,
    rows: str | Path | None,
    limits: Mapping[str, str],
    figures_of: Callable[[Path, list[Skip]], Iterable[Figure]],
    **more: Any,
) -> FiguresReport:
    """Returns the report of a set, or of another file in its format.

    Parameters
    ----------
    limits
        Key of set.toml with the limit on the errors, by kind of figure.
    figures_of
        Figures of a file; adds to a list the rows that it leaves out.
    **more
        Of `FiguresReport`.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    table, paths, title = asked(name, rows)
    skips: list[Skip] = []
    cases = [
        figure
        for path in progress.track(paths, "files")
        for figure in figures_of(path, skips)
    ]
    fitted: list[Figure] = []
    if rows is None:
        files = [folder_of(name) / file for file in table.get("calibration", ())]
        fitted = [figure for path in files for figure in figures_of(path, [])]
    held = {kind: float(table[key]) for kind, key in limits.items()}
    about = name, title, held, tuple(cases), tuple(fitted), tuple(skips)
    return FiguresReport(*about, **more)
