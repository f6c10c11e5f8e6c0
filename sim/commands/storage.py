"""Throughput and requests per second of SYSTEM by size of request (`prestep list storage`)."""

from __future__ import annotations

from typing import Any

import click

from sim.commands._shared import as_json, explained, handler

GROUP = "Predict"


@click.command(help=__doc__, epilog="Example: prestep storage lustre --threads 32")
@click.argument("system")
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Threads of one host.",
)
@as_json
@explained
def command(**options: Any) -> None:
    handler("storage").storage(**options)
