"""The command `prestep list`."""

from __future__ import annotations

import click

from sim.commands._shared import explained

KINDS = (
    "clusters",
    "models",
    "collectives",
    "schedules",
    "topologies",
    "exporters",
    "routings",
    "scenarios",
    "sets",
    "storage",
    "probes",
    "algorithms",
    "frameworks",
    "precisions",
    "optimizers",
)


@click.command(epilog="Example: prestep list clusters --long")
@click.argument("kind", type=click.Choice(KINDS))
@click.option(
    "-l", "--long", "long_", is_flag=True, help="A line about each, where it has one."
)
@explained
def command(kind: str, long_: bool) -> None:
    """List the names that scenarios and commands take."""
    from sim.tools.catalog import names, summaries

    found = names(kind)
    told = summaries(kind) if long_ else {}
    width = max((len(name) for name in found), default=0)
    for name in found:
        click.echo(f"{name:{width}}  {told[name]}" if told.get(name) else name)
