"""What `prestep storage` does."""

from __future__ import annotations

import click

from sim.commands._shared import echo_json
from sim.storage import systems


def storage(system: str, threads: int, json_: bool) -> None:
    chosen = systems.load_system(system, "command line", "SYSTEM")
    if json_:
        echo_json(systems.table_of(chosen, threads))
    else:
        click.echo(systems.render(chosen, threads))
