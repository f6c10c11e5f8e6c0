"""The command `prestep explain`."""

from __future__ import annotations

from pathlib import Path

import click

from sim.commands._shared import explained


@click.command(
    epilog="Example: prestep run llama1b-ddp4 --json > step.json && prestep explain step.json"
)
@click.argument("result", type=click.Path(path_type=Path))
@explained
def command(result: Path) -> None:
    """Say in plain words what bounds the step in RESULT (of `run --json`), what would help, and how sure that is."""
    from sim.analysis import explain

    click.echo(explain.text(explain.read(result)))
