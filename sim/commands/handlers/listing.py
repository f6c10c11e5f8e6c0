"""What `prestep list` does."""

from __future__ import annotations

import click

from sim.tools.catalog import names, summaries


def show(kind: str, long_: bool) -> None:
    listed = names(kind)
    lines = summaries(kind) if long_ else {}
    width = max((len(name) for name in listed), default=0)
    for name in listed:
        click.echo(f"{name:{width}}  {lines[name]}" if lines.get(name) else name)
