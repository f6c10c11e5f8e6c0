"""What `prestep explain` does."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path

import click

from sim.analysis import explain as explanation


def explain(result: Path) -> None:
    """A sentence a line; on a terminal wrapped to its width."""
    text = explanation.text(explanation.read(result))
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        text = "\n".join(
            textwrap.fill(sentence, columns, subsequent_indent="  ")
            for sentence in text.splitlines()
        )
    click.echo(text)
