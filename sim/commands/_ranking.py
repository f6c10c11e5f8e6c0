"""Options of commands that rank: by time, energy or cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from prestep.sim.commands._shared import POSITIVE

Command = TypeVar("Command", bound=Callable[..., Any])


def energy_prices(command: Command) -> Command:
    """`--price-per-kwh` and `--pue`."""
    kwh = click.option(
        "--price-per-kwh",
        type=POSITIVE,
        metavar="PRICE",
        help="Of energy: GPUs, hosts and switches.",
    )
    pue = click.option(
        "--pue",
        type=click.FloatRange(1, 10),
        default=1.0,
        show_default=True,
        help="Energy of the data centre over that of its machines.",
    )
    return kwh(pue(command))


def rank_by(command: Command) -> Command:
    """`--rank-by`."""
    return click.option(
        "--rank-by",
        type=click.Choice(["time", "energy", "cost"]),
        help="What the best has least of. Default: time; of a capture with prices cost.",
    )(command)
