"""Write traces as Chakra (.et), Kineto (.json, .json.gz) or a table (.parquet, .arrow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import explained, handler

GROUP = "Your programs, traces and machines"


@click.command(help=__doc__, epilog="Example: prestep convert run/ -o run.et")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="DIR|FILE...",
    type=click.Path(path_type=Path),
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="File; one a rank if several.",
)
@click.option(
    "--to",
    type=click.Choice(["chakra", "kineto", "table"]),
    help="Format; default: by the ending.",
)
@explained
def command(**options: Any) -> None:
    handler("convert_command", __package__).convert(**options)
