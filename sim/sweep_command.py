"""The commands `prestep sweep` and `prestep plot`; like `cli.py`, they parse, call one function, and print."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from sim.errors import InputError, Mistake, unknown

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def add(main: click.Group, explained: Wrapper, changes: Wrapper) -> None:
    """Adds the commands to the group, with the options and the errors that all commands share."""

    @main.command(
        epilog="Example: prestep sweep 1b.toml --grid training.micro_batch=1,2,4 --grid nvlink.bandwidth=1x,2x -o out"
    )
    @click.argument("scenario")
    @click.option("--grid", multiple=True, required=True, metavar="KEY=V1,V2", help="Values to try. May be repeated.")
    @changes
    @click.option("-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder.")
    @click.option("--executor", default="processes", show_default=True, help="processes, threads, dask://FILE.")
    @click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Runs at a time.")
    @explained
    def sweep(
        scenario: str, grid: tuple[str, ...], overrides: tuple[str, ...], output: Path, executor: str, jobs: int
    ) -> None:
        """Predict SCENARIO with every combination of values; what a folder has already is not done again."""
        from sim import sweep as sweeps
        from sim.catalog import find_scenario
        from sim.spec import load_scenario

        path = find_scenario(scenario)
        load_scenario(path)
        wanted = sweeps.specs(path, sweeps.grid_of(grid), overrides)
        made = sweeps.sweep(wanted, output, sweeps.executor_of(executor, jobs), jobs, Bar())
        click.echo(summary(made))
        click.echo(f"wrote {made}", err=True)

    @main.command(epilog="Example: prestep plot out --x training.micro_batch --y mfu -o mfu.svg")
    @click.argument("folder", type=click.Path(path_type=Path))
    @click.option("--x", required=True, metavar="KEY", help="A key of the grid.")
    @click.option("--y", default="step_time", show_default=True, metavar="COLUMN", help="step_time, mfu, ...")
    @click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File (.svg, .png, .pdf).")
    @explained
    def plot(folder: Path, x: str, y: str, output: Path | None) -> None:
        """Draw a column of a sweep against a key of its grid; one line for every value of the other keys."""
        click.echo(f"wrote {draw(folder, x, y, output or folder / f'{y}.svg')}", err=True)


class Bar:
    """Progress with the time left on stderr: from two seconds on, and only on a terminal."""

    def __init__(self) -> None:
        self.began, self.first = time.monotonic(), -1

    def __call__(self, done: int, of: int) -> None:
        self.first = done if self.first < 0 else self.first
        spent, fresh = time.monotonic() - self.began, done - self.first
        if not sys.stderr.isatty() or spent < 2:
            return
        left = f"{spent / fresh * (of - done):.0f} s left" if fresh else ""
        full = "#" * (30 * done // max(1, of))
        click.echo(f"\r{full:.<30} {done}/{of} {left:14}", err=True, nl=done == of)


def summary(path: Path) -> str:
    """The runs as a table, the fastest first, and how many were refused."""
    import pyarrow.parquet as pq

    from sim.units import format_duration

    rows = pq.read_table(path).to_pylist()
    good = sorted((row for row in rows if not row["error"]), key=lambda row: row["step_time"])
    keys = [name for name in (rows[0] if rows else {}) if name.startswith("set.")]
    cells = [[key.removeprefix("set.") for key in keys] + ["step time", "MFU", "fits"]]
    for row in good[:20]:
        mfu = "-" if row["mfu"] is None or row["mfu"] != row["mfu"] else f"{row['mfu']:.1%}"
        fits = {True: "yes", False: "no", None: "-"}[row["fits"]]
        cells.append([str(row[key]) for key in keys] + [format_duration(row["step_time"]), mfu, fits])
    wide = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(f"{cell:>{w}}" for cell, w in zip(line, wide, strict=True)) for line in cells]
    if len(good) > 20:
        lines.append(f"and {len(good) - 20} slower")
    refused = [row for row in rows if row["error"]]
    if refused:
        lines.append(f"{len(refused)} refused, such as: {refused[0]['error'].splitlines()[0]}")
    return "\n".join(lines)


def draw(folder: Path, x: str, y: str, output: Path) -> Path:
    """Draws a column of a sweep's results over a key of its grid; returns the path.

    Raises
    ------
    InputError
        If there is no such sweep, key or column, or nothing to draw.
    """
    import pandas as pd

    path = folder / "results.parquet" if folder.is_dir() else folder
    if not path.is_file():
        raise InputError(Mistake(str(folder), "", "no results.parquet", "a folder of `prestep sweep`"))
    frame = pd.read_parquet(path)
    axes = [name.removeprefix("set.") for name in frame.columns if name.startswith("set.")]
    numbers = [str(name) for name in frame.select_dtypes("number").columns]
    mistakes = [unknown("command line", "--x", x, axes)] if x not in axes else []
    mistakes += [unknown("command line", "--y", y, numbers)] if y not in numbers else []
    if output.suffix not in (".svg", ".png", ".pdf"):
        mistakes.append(Mistake("command line", "-o", str(output), "a file that ends in .svg, .png or .pdf"))
    if mistakes:
        raise InputError(mistakes)
    frame = frame[(frame["error"] == "") & frame[y].notna()]
    if frame.empty:
        raise InputError(Mistake(str(path), y, "no run that has it", "at least one"))
    _lines(frame, x, [axis for axis in axes if axis != x and frame[f"set.{axis}"].nunique() > 1], y, output)
    return output


def _lines(frame: Any, x: str, others: Sequence[str], y: str, output: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    order = list(dict.fromkeys(frame[f"set.{x}"]))
    at = {value: place for place, value in enumerate(order)}
    lines = frame.groupby([f"set.{axis}" for axis in others], sort=False) if others else [((), frame)]
    for values, rows in lines:
        label = ", ".join(f"{axis.rpartition('.')[2]} {value}" for axis, value in zip(others, values, strict=True))
        axes.plot([at[value] for value in rows[f"set.{x}"]], rows[y], marker="o", label=label)
    axes.set_xticks(range(len(order)), order)
    axes.set(xlabel=x, ylabel=f"{y} (s)" if y.endswith("time") else y, ylim=(0, None))
    axes.grid(alpha=0.3)
    if others:
        axes.legend(fontsize=8)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=130)
