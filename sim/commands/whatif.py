"""Predict SCENARIO as it is and with changes, side by side; or find out which element matters most."""

from __future__ import annotations

from typing import Any

import click

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
    epilog="\b\n"
    "Examples:\n"
    "  prestep whatif llama8b-fsdp4 --set nvlink.bandwidth=2x\n"
    "  prestep whatif llama1b-ddp4 --each link-kind\n",
)
@click.argument("scenario")
@changes
@click.option(
    "--each",
    multiple=True,
    metavar="WHAT",
    help="Try each link-kind, tier, latency, gpu, rank, host, host-clock, link; all.",
)
@click.option(
    "--factors", default="0.5,2", show_default=True, help="What --each multiplies by."
)
@click.option(
    "--most",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    help="Of ranks, hosts or links that differ, --each tries so many.",
)
@file_option("--plot", text="Draw what --each found (.svg, .png, .html).")
@as_json
@on_cluster
@on_hosts
@of_recipe
@explained
def command(**options: Any) -> None:
    handler("whatif").whatif(**options)
