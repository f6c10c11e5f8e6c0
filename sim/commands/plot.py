"""Draw a column of a sweep against a key of its grid; one line for every value of the other keys."""

from __future__ import annotations

from pathlib import Path

import click

from prestep.sim.commands._shared import explained, file_option, talk
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.studies import sweep_plot

GROUP = "Understand a result"


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep plot out --x training.micro_batch --y mfu -o mfu.svg\n"
    "  prestep plot out --x parallel.dp --y cost_per_token --price 2.50\n",
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
@file_option("-o", "--output", text="File (.svg, .png, .pdf).")
@explained
def command(
    folder: Path, x: str, y: str, price: float | None, output: Path | None
) -> None:
    talk(f"wrote {sweep_plot.plot(folder, x, y, price, output)}")
