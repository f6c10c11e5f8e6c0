"""The command `prestep sweep`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.commands._shared import changes, explained

if TYPE_CHECKING:
    from sim.progress import Task


@click.command(
    epilog="Example: prestep sweep 1b.toml --grid training.micro_batch=1,2,4 --grid nvlink.bandwidth=1x,2x -o out"
)
@click.argument("scenario")
@click.option(
    "--grid",
    multiple=True,
    required=True,
    metavar="KEY=V1,V2",
    help="Values to try. May be repeated.",
)
@changes
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder.",
)
@click.option(
    "--executor",
    default="processes",
    show_default=True,
    help="processes, threads, dask://FILE.",
)
@click.option(
    "--jobs",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Runs at a time.",
)
@explained
def command(
    scenario: str,
    grid: tuple[str, ...],
    overrides: tuple[str, ...],
    output: Path,
    executor: str,
    jobs: int,
) -> None:
    """Predict SCENARIO with every combination of values; what a folder has already is not done again."""
    from sim import progress
    from sim.spec.load import load_scenario
    from sim.studies import sweep as sweeps
    from sim.tools.catalog import find_scenario

    path, values, makes = (
        find_scenario(scenario),
        sweeps.grid_of(grid),
        sweeps.executor_of(executor, jobs),
    )
    load_scenario(path)
    wanted = sweeps.specs(path, values, overrides)
    with progress.count("runs", len(wanted)) as task:
        made = sweeps.sweep(wanted, output, makes, jobs, partial(_tell, task))
    click.echo(summary(made))
    click.echo(f"wrote {made}", err=True)


def _tell(task: Task, done: int, of: int) -> None:
    """The first call says what was there before."""
    if not task.done:
        task.before = done
    task.done = done


def summary(path: Path) -> str:
    """The runs as a table, the fastest first, and how many were refused."""
    import pyarrow.parquet as pq

    from sim.units import format_duration

    rows = pq.ParquetFile(path).read().to_pylist()  # read_table would import pandas
    good = sorted(
        (row for row in rows if not row["error"]), key=lambda row: row["step_time"]
    )
    keys = [name for name in (rows[0] if rows else {}) if name.startswith("set.")]
    cells = [[key.removeprefix("set.") for key in keys] + ["step time", "MFU", "fits"]]
    for row in good[:20]:
        mfu = (
            "-"
            if row["mfu"] is None or row["mfu"] != row["mfu"]
            else f"{row['mfu']:.1%}"
        )
        fits = {True: "yes", False: "no", None: "-"}[row["fits"]]
        cells.append(
            [str(row[key]) for key in keys]
            + [format_duration(row["step_time"]), mfu, fits]
        )
    wide = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(f"{cell:>{w}}" for cell, w in zip(line, wide, strict=True))
        for line in cells
    ]
    if len(good) > 20:
        lines.append(f"and {len(good) - 20} slower")
    refused = [row for row in rows if row["error"]]
    if refused:
        lines.append(
            f"{len(refused)} refused, such as: {refused[0]['error'].splitlines()[0]}"
        )
    return "\n".join(lines)
