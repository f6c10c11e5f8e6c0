"""The command `prestep plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sim import files
from sim.commands._shared import explained
from sim.errors import InputError, Mistake, unknown


@click.command(
    epilog="\b\n"
    "Examples:\n"
    "  prestep plot out --x training.micro_batch --y mfu -o mfu.svg\n"
    "  prestep plot out --x parallel.dp --y cost_per_token --price 2.50\n"
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--x", required=True, metavar="KEY", help="A key of the grid.")
@click.option(
    "--y",
    default="step_time",
    show_default=True,
    metavar="COLUMN",
    help="step_time, mfu, cost_per_token, ...",
)
@click.option(
    "--price",
    type=click.FloatRange(0, min_open=True),
    help="Of a GPU for an hour, for cost_per_token.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File (.svg, .png, .pdf).",
)
@explained
def command(
    folder: Path, x: str, y: str, price: float | None, output: Path | None
) -> None:
    """Draw a column of a sweep against a key of its grid; one line for every value of the other keys."""
    click.echo(
        f"wrote {draw(folder, x, y, output or folder / f'{y}.svg', price)}", err=True
    )


COST = "cost_per_token"
#: What an axis says of a column, and the factor from the column to what is drawn.
_AXES = {
    "step_time": ("step time (s)", 1.0),
    "mfu": ("MFU (%)", 100.0),
    COST: ("cost of a million tokens", 1e6),
    "tokens_per_second_per_gpu": ("tokens/s per GPU", 1.0),
    "tflops_per_gpu": ("model TFLOP/s per GPU", 1.0),
    "peak_memory": ("memory of the fullest rank (GiB)", 2.0**-30),
    "grounded": ("measured or fitted (%)", 100.0),
}
_SECONDS = ("compute", "exposed_communication", "bubble", "io", "host", "idle")


def draw(
    folder: Path, x: str, y: str, output: Path, price: float | None = None
) -> Path:
    """Draws a column of a sweep's results over a key of its grid; returns the path.

    `price`: of a GPU for an hour, in any currency; needed for `cost_per_token`.

    Raises
    ------
    InputError
        If there is no such sweep, key or column, or nothing to draw.
    """
    import pandas as pd

    path = folder / "results.parquet" if folder.is_dir() else folder
    if not path.is_file():
        raise InputError(
            Mistake(
                str(folder), "", "no results.parquet", "a folder of `prestep sweep`"
            )
        )
    frame = pd.read_parquet(path)
    axes = [
        name.removeprefix("set.") for name in frame.columns if name.startswith("set.")
    ]
    if price is not None:
        frame[COST] = price / 3600 / frame["tokens_per_second_per_gpu"]
    numbers = [
        *map(str, frame.select_dtypes("number").columns),
        *([COST] if price is None else []),
    ]
    mistakes = [unknown("command line", "--x", x, axes)] if x not in axes else []
    mistakes += [unknown("command line", "--y", y, numbers)] if y not in numbers else []
    if y == COST and price is None:
        mistakes.append(
            Mistake(
                "command line",
                "--y",
                f"{COST} alone",
                "--price of a GPU for an hour beside it",
            )
        )
    if y != COST and price is not None:
        mistakes.append(Mistake("command line", "--price", f"--y {y}", f"--y {COST}"))
    if output.suffix not in (".svg", ".png", ".pdf"):
        mistakes.append(
            Mistake(
                "command line",
                "-o",
                str(output),
                "a file that ends in .svg, .png or .pdf",
            )
        )
    if mistakes:
        raise InputError(mistakes)
    frame = frame[(frame["error"] == "") & frame[y].notna()]
    if frame.empty:
        raise InputError(Mistake(str(path), y, "no run that has it", "at least one"))
    _lines(
        frame,
        x,
        [axis for axis in axes if axis != x and frame[f"set.{axis}"].nunique() > 1],
        y,
        output,
    )
    return output


def _lines(frame: Any, x: str, others: Sequence[str], y: str, output: Path) -> None:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    order = list(dict.fromkeys(frame[f"set.{x}"]))
    at = {value: place for place, value in enumerate(order)}
    lines = (
        frame.groupby([f"set.{axis}" for axis in others], sort=False)
        if others
        else [((), frame)]
    )
    told, factor = _AXES.get(
        y, (f"{y.replace('_', ' ')} (s)" if y in _SECONDS else y.replace("_", " "), 1.0)
    )
    for values, rows in lines:
        label = ", ".join(
            f"{axis} {value}" for axis, value in zip(others, values, strict=True)
        )
        axes.plot(
            [at[value] for value in rows[f"set.{x}"]],
            factor * rows[y],
            marker="o",
            label=label,
        )
    axes.set_xticks(range(len(order)), order)
    axes.set(xlabel=x, ylabel=told, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if others:
        axes.legend(fontsize=8)
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        matplotlib.rc_context({"svg.hashsalt": "prestep", "svg.fonttype": "none"}),
        files.replacing(output) as beside,
    ):
        figure.savefig(
            beside,
            dpi=130,
            metadata={"Date": None} if output.suffix == ".svg" else None,
        )
