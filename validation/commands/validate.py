"""Compare predictions with the measured cases of SET (`prestep list sets`); exit 1 outside tolerance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import as_json, explained, file_option, handler

GROUP = "Trust"


@click.command(help=__doc__, epilog="Example: prestep validate h200 --junit h200.xml")
@click.argument("sets", metavar="[SET]...", nargs=-1)
@click.option(
    "--rows",
    type=click.Path(path_type=Path),
    help="Predict these instead, in the format of the set.",
)
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    help="Where rows were measured that do not say it (steps, programs, energy).",
)
@as_json
@file_option("--junit", text="Write JUnit XML.")
@file_option(
    "--export",
    text="Write measured and predicted steps as one table (.parquet, .csv).",
)
@file_option("--plot", text="Write a scatter plot (PNG).")
@file_option("--markdown", text="Write the report as Markdown.")
@file_option(
    "--html", text="Write a page with scatter and residual plots, in one file."
)
@click.option(
    "--compare",
    metavar="FILE|REV",
    help="List what moved since this: a file of --json, or a git revision.",
)
@click.option(
    "--only-compare",
    is_flag=True,
    help="With --compare: print and judge what moved, not the sets.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="With --compare: exit 1 if any prediction is not the same number.",
)
@click.option(
    "--jobs",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Worker processes.",
)
@file_option(
    "--known-misses",
    text="Exit 1 only for failed checks that this TOML table does not list, or that grew.",
)
@explained
def command(**options: Any) -> None:
    handler("validate", f"{__package__}.handlers").validate(**options)
