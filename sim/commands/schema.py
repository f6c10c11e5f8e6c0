"""Print the JSON Schema of scenario files."""

from __future__ import annotations

from typing import Any

import click

from sim.commands._shared import explained, handler

GROUP = "Understand a result"


@click.command(help=__doc__, epilog="Example: prestep schema > scenario.schema.json")
@explained
def command(**options: Any) -> None:
    handler("schema").schema(**options)
