"""Find the fastest layouts of SCENARIO's model, cluster and global batch that fit in memory.

What the file says of the layout does not count; --set pins a key of it, --over says which values to try.

Of a recorded program (.capture) the layout is its own: the clusters that run it fastest, or cheapest with --price;
one for every GPU, or those of --over cluster.name=A,B.
"""

from __future__ import annotations

from typing import Any

import click

from prestep.sim.commands._ranking import energy_prices, rank_by
from prestep.sim.commands._shared import (
    as_json,
    changes,
    explained,
    file_option,
    handler,
    of_recipe,
    on_cluster,
    on_hosts,
)

GROUP = "Predict"


@click.command(
    help=__doc__,
    epilog="Example: prestep search 8b.toml --over parallel.tp=1,2,4,8 --over training.recompute=none --price 2.50 "
    "--write best.toml. Exit code 1: no layout fits.",
)
@click.argument("scenario")
@click.option(
    "--top",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Layouts to rank.",
)
@click.option(
    "--over",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Values to try for a key. May be repeated.",
)
@changes
@click.option(
    "--price",
    metavar="PRICE",
    help="Of a GPU for an hour, for a cost per token; of several GPUs h100=2.50,h200=3.10.",
)
@energy_prices
@rank_by
@click.option(
    "--trials",
    type=click.IntRange(1),
    help="Look at so many layouts only, chosen by optuna.",
)
@click.option(
    "--jobs", default=2, show_default=True, type=click.IntRange(1), help="Processes."
)
@as_json
@file_option(
    "--write", text="Write the best layout as a scenario that `prestep run` takes."
)
@on_cluster
@on_hosts
@of_recipe
@explained
def command(**options: Any) -> None:
    handler("search").search(**options)
