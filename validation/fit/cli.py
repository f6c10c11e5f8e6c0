"""Fit NCCL's constants on a machine to LOGS: nccl-tests (text or JSON), JSON lines of collectives, or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import explained, handler

GROUP = "Your programs, traces and machines"


@click.command(
    help=__doc__,
    epilog="Example: prestep calibrate all_reduce.log all_gather.json -o mine.toml --cluster dgx-h100",
)
@click.argument(
    "logs", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path)
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.",
)
@click.option(
    "--cluster",
    default="",
    metavar="NAME|FILE",
    help="Where the logs were made; `prestep list clusters`.",
)
@click.option(
    "--gpu-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Facts of a GPU that prestep does not have, in a file of its own.",
)
@click.option(
    "--op", default="", help="Operation of nccl-tests logs that do not say it."
)
@click.option(
    "--network",
    is_flag=True,
    help="Fit the network's facts to rows of several hosts: a cluster file.",
)
@click.option("--force", is_flag=True, help="Replace the file.")
@explained
def command(**options: Any) -> None:
    show_page(handler("command", __package__).calibrate(**options))
