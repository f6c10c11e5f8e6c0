"""The command `prestep plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sim import files
from sim.commands._shared import explained
from sim.errors import InputError, Mistake, unknown


@click.command(epilog="Example: prestep plot out --x training.micro_batch --y mfu -o mfu.svg")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--x", required=True, metavar="KEY", help="A key of the grid.")
@click.option("--y", default="step_time", show_default=True, metavar="COLUMN", help="step_time, mfu, ...")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File (.svg, .png, .pdf).")
@explained
def command(folder: Path, x: str, y: str, output: Path | None) -> None:
    """Draw a column of a sweep against a key of its grid; one line for every value of the other keys."""
    click.echo(f"wrote {draw(folder, x, y, output or folder / f'{y}.svg')}", err=True)


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
    with files.replacing(output) as beside:
        figure.savefig(beside, dpi=130)
