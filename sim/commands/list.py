"""List the names that scenarios and commands take."""

from __future__ import annotations

from typing import Any

import click

from sim.commands._shared import explained, handler

GROUP = "Understand a result"


KINDS = (
    "clusters",
    "models",
    "collectives",
    "schedules",
    "topologies",
    "exporters",
    "routings",
    "scenarios",
    "sets",
    "storage",
    "gpus",
    "probes",
    "algorithms",
    "frameworks",
    "precisions",
    "optimizers",
    "recipes",
)


@click.command(help=__doc__, epilog="Example: prestep list clusters --long")
@click.argument("kind", type=click.Choice(KINDS))
@click.option(
    "-l",
    "--long",
    "long_",
    is_flag=True,
    help="Say what each thing is, as on a terminal.",
)
@click.option(
    "--json",
    "json_",
    is_flag=True,
    help="What each thing is, by name; of GPUs what each family of kernels rests on.",
)
@explained
def command(**options: Any) -> None:
    handler("listing").show(**options)
