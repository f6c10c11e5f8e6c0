"""What `prestep sweep` does."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from prestep.sim import progress
from prestep.sim.analysis.cost import Prices
from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import talk
from prestep.sim.errors import EXIT_INPUT
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.scenario_file import is_recipe
from prestep.sim.studies import sweep as study
from prestep.sim.studies.executors import executor_of
from prestep.sim.studies.grid import grid_of, specs
from prestep.sim.studies.ranking import (
    COST,
    ENERGY,
    FASTEST,
    TIME,
    Objective,
    objective_of,
)
from prestep.sim.tools.catalog import find_scenario
from prestep.sim.units import format_duration

Row = study.Row
LONGEST = 20  # rows of the table


def sweep(
    scenario: str,
    grid: tuple[str, ...],
    overrides: tuple[str, ...],
    output: Path,
    executor: str,
    jobs: int,
    price: float | None,
    price_per_kwh: float | None,
    pue: float,
    rank_by: str | None,
) -> None:
    objective = objective_of(rank_by or TIME, Prices(price, price_per_kwh, pue))
    path = find_scenario(scenario)
    values = grid_of(grid)
    pool = executor_of(executor, jobs)
    if not is_recipe(path):  # which needs a cluster, that may be what is swept
        load_scenario(path)  # mistakes of the file are told once, not for every run
    runs = specs(path, values, overrides)
    with progress.count("runs", len(runs)) as task:
        results = study.sweep(runs, output, pool, jobs, partial(_tell, task))
    rows = study.rows_of(results)
    talk(f"wrote {results}")
    show_page(summary(rows, objective))
    if rows and all(row["error"] for row in rows):
        sys.exit(EXIT_INPUT)  # as `run` of any of them


def _tell(task: progress.Task, done: int, of: int) -> None:
    """The first call says what was there before."""
    if not task.done:
        task.before = done
    task.done = done


def summary(rows: Sequence[Row], objective: Objective = FASTEST) -> str:
    """The runs as a table, the best first, and how many were refused."""
    good = [row for row in rows if not row["error"]]
    refused = [row for row in rows if row["error"]]
    good.sort(key=lambda row: _score(row, objective))
    keys = [name for name in (rows[0] if rows else {}) if name.startswith("set.")]
    heading = [*(key.removeprefix("set.") for key in keys), "step time", "MFU", "fits"]
    heading += ["J/token"] if objective.needs_watts else []
    heading += ["per 1M"] if objective.priced else []
    cells = [_cells(row, keys, objective) for row in good[:LONGEST]]
    lines = _aligned([heading, *cells])
    if len(good) > LONGEST:
        lines.append(f"and {len(good) - LONGEST} {_worse(objective)}")
    if refused:
        reason = refused[0]["error"].splitlines()[0]
        lines.append(f"{len(refused)} refused, such as: {reason}")
    return "\n".join(lines)


def _worse(objective: Objective) -> str:
    return "slower" if objective.by == TIME else f"that take more {objective.by}"


def _score(row: dict[str, Any], objective: Objective) -> float:
    """What is ranked: seconds of a step; joules or cost of a token, since runs may differ in their batch."""
    if objective.by == TIME:
        return float(row["step_time"])
    score = _of_a_token(row, objective)
    if math.isnan(
        score
    ):  # a recorded program's runs have the same batch: a step's will do
        score = objective.score(row["step_time"], row["gpus"], _watts_of(row))
    return math.inf if math.isnan(score) else score


def _of_a_token(row: dict[str, Any], objective: Objective) -> float:
    """Joules or cost of a token; nan where it is not known, as of recorded programs."""
    speed = row["tokens_per_second_per_gpu"]
    rate = math.nan if speed is None else speed * row["gpus"]
    return (
        objective.score(1.0 / rate, row["gpus"], _watts_of(row)) if rate else math.nan
    )


def _watts_of(row: Row) -> float:
    return math.nan if row["total_power"] is None else float(row["total_power"])


def _cells(row: dict[str, Any], keys: Sequence[str], objective: Objective) -> list[str]:
    mfu = row["mfu"]
    has_mfu = mfu is not None and mfu == mfu  # not nan
    fits = {True: "yes", False: "no", None: "-"}[row["fits"]]
    values = [str(row[key]) for key in keys]
    time = format_duration(row["step_time"])
    cells = [*values, time, f"{mfu:.1%}" if has_mfu else "-", fits]
    if objective.needs_watts:
        cells.append(f"{_of_a_token(row, replace(objective, by=ENERGY)):.3g}")
    if objective.priced:
        cells.append(f"{1e6 * _of_a_token(row, replace(objective, by=COST)):.4g}")
    return cells


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for line in cells
    ]
