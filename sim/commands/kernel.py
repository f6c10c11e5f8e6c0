"""Predict how long a GPU takes for one kernel, in a step and alone, what bounds it, and what that rests on."""

from __future__ import annotations

from typing import Any

import click

from prestep.sim.commands._shared import as_json, explained, handler

GROUP = "Predict"


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep kernel gemm 16384,8192,1280 --gpu h100 --dtype fp64\n"
    "  prestep kernel copy 33554432 --gpu h100\n",
)
@click.argument("kind")
@click.argument("shape")
@click.option("--gpu", default="h200", show_default=True, help="A GPU's name.")
@click.option("--dtype", default="bf16", show_default=True, help="Number format.")
@click.option(
    "--layout",
    default="",
    help="Of a product: nn, nt (a linear layer; the default), tn.",
)
@as_json
@explained
def command(**options: Any) -> None:
    handler("kernel").kernel(**options)
