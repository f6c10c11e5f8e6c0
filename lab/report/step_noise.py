"""How much steps differ from each other: logged runs beside replicas with noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prestep.validation.report.gate import Check
from prestep.validation.report.interface import Table

HEAD = ("case", "GPUs", "measured", "predicted", "ratio", "")


@dataclass(frozen=True)
class StepNoise:
    """Relative standard deviations of a row's steps; `fitted`: constants of noise may be taken from its group."""

    name: str
    gpus: int
    measured: float
    predicted: float
    fitted: bool

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "ratio": self.ratio}


def typical_ratio(rows: Sequence[StepNoise]) -> float:
    """The median of predicted over measured; nan without rows."""
    return statistics.median(row.ratio for row in rows) if rows else math.nan


def judged(rows: Sequence[StepNoise]) -> list[StepNoise]:
    return [row for row in rows if not row.fitted]


def figures(rows: Sequence[StepNoise]) -> Mapping[str, Any]:
    """For JSON: numbers of rows, the typical ratio of judged and of fitted rows, and the rows."""
    parts = {"judged": judged(rows), "fitted": [row for row in rows if row.fitted]}
    medians = {
        name: {"n": len(part), "median_ratio": typical_ratio(part)}
        for name, part in parts.items()
        if part
    }
    return {**medians, "rows": [row.to_json() for row in rows]}


def check(rows: Sequence[StepNoise], limit: float) -> Check:
    """How many times the typical ratio of judged rows is off, either way, less one."""
    times = math.exp(abs(math.log(typical_ratio(judged(rows)))))
    return Check("step noise: median ratio off by", times - 1.0, limit)


def table(rows: Sequence[StepNoise]) -> Table:
    cells = [
        (
            row.name,
            str(row.gpus),
            f"{row.measured:.2%}",
            f"{row.predicted:.2%}",
            f"{row.ratio:.2f}",
            "for fitting" if row.fitted else "",
        )
        for row in sorted(rows, key=lambda row: row.gpus)
    ]
    return Table("Standard deviation of a step", HEAD, cells)
