"""The command `prestep storage`."""

from __future__ import annotations

import json

import click

from sim.commands._shared import as_json, explained


@click.command(epilog="Example: prestep storage lustre --threads 32")
@click.argument("system")
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Threads of one host.",
)
@as_json
@explained
def command(system: str, threads: int, json_: bool) -> None:
    """Throughput and requests per second of SYSTEM by size of request (`prestep list storage`)."""
    from sim.storage import systems

    found = systems.known(system, "command line", "SYSTEM")
    table = systems.table_of(found, threads)
    click.echo(json.dumps(table, indent=2) if json_ else systems.render(found, threads))
