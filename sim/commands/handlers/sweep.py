"""What `prestep sweep` does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq

from sim import progress
from sim.commands._shared import talk
from sim.spec.load import load_scenario
from sim.spec.scenario_file import is_recipe
from sim.studies import sweep as study
from sim.studies.executors import executor_of
from sim.studies.grid import grid_of, specs
from sim.tools.catalog import find_scenario
from sim.units import format_duration

LONGEST = 20  # rows of the table


def sweep(
    scenario: str,
    grid: tuple[str, ...],
    overrides: tuple[str, ...],
    output: Path,
    executor: str,
    jobs: int,
) -> None:
    path = find_scenario(scenario)
    values = grid_of(grid)
    pool = executor_of(executor, jobs)
    if not is_recipe(path):  # which needs a cluster, that may be what is swept
        load_scenario(path)  # mistakes of the file are told once, not for every run
    runs = specs(path, values, overrides)
    with progress.count("runs", len(runs)) as task:
        results = study.sweep(runs, output, pool, jobs, partial(_tell, task))
    click.echo(summary(results))
    talk(f"wrote {results}")


def _tell(task: progress.Task, done: int, of: int) -> None:
    """The first call says what was there before."""
    if not task.done:
        task.before = done
    task.done = done


def summary(path: Path) -> str:
    """The runs as a table, the fastest first, and how many were refused."""
    rows = pq.ParquetFile(path).read().to_pylist()  # read_table would import pandas
    good = [row for row in rows if not row["error"]]
    refused = [row for row in rows if row["error"]]
    good.sort(key=lambda row: row["step_time"])
    keys = [name for name in (rows[0] if rows else {}) if name.startswith("set.")]
    heading = [*(key.removeprefix("set.") for key in keys), "step time", "MFU", "fits"]
    lines = _aligned([heading, *(_cells(row, keys) for row in good[:LONGEST])])
    if len(good) > LONGEST:
        lines.append(f"and {len(good) - LONGEST} slower")
    if refused:
        reason = refused[0]["error"].splitlines()[0]
        lines.append(f"{len(refused)} refused, such as: {reason}")
    return "\n".join(lines)


def _cells(row: dict[str, Any], keys: Sequence[str]) -> list[str]:
    mfu = row["mfu"]
    has_mfu = mfu is not None and mfu == mfu  # not nan
    fits = {True: "yes", False: "no", None: "-"}[row["fits"]]
    values = [str(row[key]) for key in keys]
    time = format_duration(row["step_time"])
    return [*values, time, f"{mfu:.1%}" if has_mfu else "-", fits]


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for line in cells
    ]
