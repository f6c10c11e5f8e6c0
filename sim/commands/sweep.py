"""Predict SCENARIO with every combination of values; what a folder has already is not done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._ranking import energy_prices, rank_by
from prestep.sim.commands._shared import (
    POSITIVE,
    changes,
    explained,
    handler,
    of_recipe,
    on_cluster,
    on_hosts,
)

GROUP = "Predict"


@click.command(
    help=__doc__,
    epilog="Example: prestep sweep 1b.toml --grid training.micro_batch=1,2,4 --grid nvlink.bandwidth=1x,2x -o out",
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
@click.option(
    "--price",
    type=POSITIVE,
    metavar="PRICE",
    help="Of a GPU for an hour, for a cost per million tokens.",
)
@energy_prices
@rank_by
@on_cluster
@on_hosts
@of_recipe
@explained
def command(**options: Any) -> None:
    handler("sweep").sweep(**options)
