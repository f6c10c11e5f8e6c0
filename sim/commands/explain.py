"""Say in plain words what bounds the step in RESULT (of `run --json`), what would help, and how sure that is."""

from __future__ import annotations

from pathlib import Path

import click

from prestep.sim.commands._shared import explained, show_page
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.analysis import explain

GROUP = "Understand a result"


@click.command(
    help=__doc__,
    epilog="Example: prestep run llama1b-ddp4 --json > step.json && prestep explain step.json",
)
@click.argument("result", type=click.Path(path_type=Path))
@explained
def command(result: Path) -> None:
    show_page(explain.text(explain.read(result)))
