"""Serve prestep to agents as tools, over stdin and stdout (Model Context Protocol)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import explained, handler

GROUP = "Predict"


@click.command(
    help=__doc__ + "\n\nTools read files below PATH, and without one bundled names "
    "and scenarios that come as text alone. They write nothing.",
    epilog="Example: prestep mcp scenarios/ traces/ --time-limit 120",
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="End a call that takes longer.",
)
@explained
def command(**options: Any) -> None:
    handler("command", __package__).mcp(**options)
