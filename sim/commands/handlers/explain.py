"""What `prestep explain` does."""

from __future__ import annotations

from pathlib import Path

import click

from sim.analysis import explain as explanation


def explain(result: Path) -> None:
    click.echo(explanation.text(explanation.read(result)))
