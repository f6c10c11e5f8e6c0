"""Say in plain words what bounds the step in RESULT (of `run --json`), what would help, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import explained, handler

GROUP = "Understand a result"


@click.command(
    help=__doc__,
    epilog="Example: prestep run llama1b-ddp4 --json > step.json && prestep explain step.json",
)
@click.argument("result", type=click.Path(path_type=Path))
@explained
def command(**options: Any) -> None:
    handler("explain").explain(**options)
