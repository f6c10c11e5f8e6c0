"""Look at this environment: versions, packages in the way, what is missing; exit 1 if something is wrong."""

from __future__ import annotations

from typing import Any

import click

from sim.commands._shared import as_json, explained, handler

GROUP = "Trust"


@click.command(help=__doc__, epilog="Example: prestep doctor --json")
@as_json
@explained
def command(**options: Any) -> None:
    handler("doctor").doctor(**options)
