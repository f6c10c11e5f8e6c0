"""How fast a machine's host runs framework code: steps of tiny models over the sum of their host operations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.costs.spreads import quantile
from sim.errors import InputError
from validation.fit.bootstrap import Estimate, estimate
from validation.fit.calibrate_host import counts_of
from validation.formats.rows import Row, read_rows
from workloads.host_costs import host_costs

TINY = ("h4", "h16")  # their GPUs wait for the host throughout
HELD_OUT = 3  # every third case
#: Seconds of a step of `validation.measure.dispatch` on a host of factor 1, the mean over its cores: two starts (H100,
#: H200) whose tiny steps gave 2.07 and 1.73. Four further starts come out -0.5, +6, +2.5 and -2 % off theirs.
DISPATCH_STEP = 3.25e-3
DISPATCH_SPREAD = 0.10  # within ten minutes of three starts, of the logarithm


@dataclass(frozen=True)
class Host:
    """`factor`: time of framework code here over that on the host it was fitted on; signed errors by row."""

    factor: Estimate
    fitted: dict[str, float]
    held_out: dict[str, float]

    @property
    def summary(self) -> str:
        """The factor, and errors of both parts."""
        return f"host_factor {self.factor}; fitted: {_listed(self.fitted)}; held out: {_listed(self.held_out)}"


def _listed(errors: Mapping[str, float]) -> str:
    """Errors by row."""
    return ", ".join(f"{name} {e:+.1%}" for name, e in errors.items()) or "no rows"


def fit(path: Path | None) -> Host | None:
    """The host's factor from rows of training steps; None where no step of a tiny model is among them."""
    middles = _ratios(path)
    if not middles:
        return None
    fitted = [name for at, name in enumerate(middles) if at % HELD_OUT != HELD_OUT - 1]
    trial = _factor([middles[name] for name in fitted]).value
    errors = {name: trial / middle - 1 for name, middle in middles.items()}
    return Host(
        _factor(list(middles.values())),
        {name: errors[name] for name in fitted},
        {name: errors[name] for name in middles if name not in fitted},
    )


def of_dispatch(rows: Sequence[Mapping[str, Any]]) -> Host | None:
    """The factor by steps on the CPU, where no step of a GPU says it; None without such rows."""
    if not rows:
        return None
    value = float(np.mean([row["s"] for row in rows])) / DISPATCH_STEP
    wide = math.exp(quantile() * DISPATCH_SPREAD)
    return Host(Estimate(value, value / wide, value * wide, len(rows)), {}, {})


def _ratios(path: Path | None) -> dict[str, float]:
    """Median time of each case over what its host operations cost elsewhere."""
    ratios: dict[str, float] = {}
    for row in _rows(path):
        try:
            counts = counts_of(row)
        except InputError:
            continue  # a case that no scenario can say
        costs = host_costs("pytorch-eager")
        expected = sum(costs[name] * count for name, count in counts.items())
        times = [time / expected for times in row.steps.values() for time in times]
        ratios[row.name] = float(np.median(times))
    return ratios


def _rows(path: Path | None) -> list[Row]:
    rows = read_rows(path) if path is not None else []
    return [
        row
        for row in rows
        if not row.error
        and row.case.get("model") in TINY
        and not row.case.get("compile")
    ]


def _factor(middles: Sequence[float]) -> Estimate:
    """The geometric mean over cases. Steps of a case are no independent rows: a host is slow for seconds at a time."""
    logs = estimate(np.log(middles).tolist(), lambda x: np.mean(x, axis=-1))
    value, low, high = np.exp([logs.value, logs.low, logs.high]).tolist()
    return Estimate(value, low, high, logs.rows)
