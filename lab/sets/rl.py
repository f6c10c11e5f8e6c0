"""Sets of published RL steps (`kind = "rl"` in set.toml): step times, held to a mean error and an order.

Groups of a model and an algorithm are fitted to, or judged, together. Rows of another file are judged too, unless they
are the very rows that constants were fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.formats.rl_rows import STEP_TIME, RlRow, read_rows, scenario_of
from lab.report.figures_of_rows import Figure, FiguresReport
from prestep.sim import progress
from prestep.sim.errors import PrestepError
from prestep.sim.rl import step
from prestep.sim.rl.result import interval_of
from prestep.validation.report.gate import Check
from prestep.validation.report.summary import rank_correlation
from prestep.validation.sets.sets import asked, folder_of

TIME = "step time"


@dataclass(frozen=True)
class RlReport(FiguresReport):
    """Step times: their mean error and their order are held to limits (`TIME`, "order")."""

    unit: str = "RL steps"
    within: float = math.nan  # share of judged rows within their interval

    @property
    def kinds(self) -> tuple[str, ...]:
        return (TIME,)

    @property
    def order(self) -> float | None:
        """Spearman's rank correlation of judged times; None where there are too few."""
        told = [case for case in self.cases if not case.error]
        measured = [case.measured for case in told]
        return rank_correlation(measured, [case.predicted for case in told])

    @property
    def checks(self) -> tuple[Check, ...]:
        made = FiguresReport.checks.fget(self)  # type: ignore[attr-defined]
        if self.order is None:
            return tuple(made)
        lacking, limit = 1 - self.order, 1 - self.limits["order"]
        name = f"order: 1 less a rank correlation of {self.order:.3f}"
        return (*made, Check(name, lacking, limit, share=False))

    def figures(self) -> dict[str, Any]:
        within = self.within if math.isfinite(self.within) else None
        own = {"rank_correlation": self.order, "within_interval": within}
        return {**super().figures(), **own}


def validate_set(name: str, rows: str | Path | None = None, jobs: int = 1) -> RlReport:
    """Predicts the RL steps of a set, or of other rows with the same columns.

    Raises
    ------
    InputError
        If there is no such set, or a file cannot be read.
    """
    table, paths, title = asked(name, rows)
    own = [row for file in table["rows"] for row in read_rows(folder_of(name) / file)]
    fitted = {row.same for row in own if row.group in table["fitted"]}
    every = [row for path in paths for row in read_rows(path)]
    judged = [row for row in every if row.same not in fitted]
    cases, within = _predicted(judged)
    calibration, _ = _predicted([row for row in every if row.same in fitted])
    limits = {TIME: float(table["mean"]), "order": float(table["order"])}
    return RlReport(
        name, title, limits, tuple(cases), tuple(calibration), within=within
    )


def _predicted(rows: Iterable[RlRow]) -> tuple[list[Figure], float]:
    """Figures of rows, and the share of those predicted whose interval has the measured time."""
    figures, inside = [], []
    for row in progress.track(list(rows), "rows"):
        measured = row.seconds(STEP_TIME)
        try:
            made = step.predict(scenario_of(row))
        except PrestepError as error:
            figures.append(Figure(row.name, TIME, measured, math.nan, str(error)))
            continue
        figures.append(Figure(row.name, TIME, measured, made.step_time))
        interval = interval_of(made)
        inside.append(interval.low <= measured <= interval.high)
    return figures, sum(inside) / len(inside) if inside else math.nan
