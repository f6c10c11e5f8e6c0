"""Print the JSON Schema of scenario files, or of what a command prints with --json (`prestep schema --list`)."""

from __future__ import annotations

from typing import Any

import click

from prestep.sim.commands._shared import explained, handler

GROUP = "Understand a result"


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep schema > scenario.schema.json\n"
    "  prestep schema run > run.schema.json\n",
)
@click.argument("output", required=False)
@click.option("--list", "list_", is_flag=True, help="Names of the outputs.")
@explained
def command(**options: Any) -> None:
    handler("schema").schema(**options)
