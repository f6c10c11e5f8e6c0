"""The command `prestep schema`."""

from __future__ import annotations

import click

from sim.commands._shared import echo_json, explained


@click.command(epilog="Example: prestep schema > scenario.schema.json")
@explained
def command() -> None:
    """Print the JSON Schema of scenario files."""
    from sim.spec.load import json_schema

    echo_json(json_schema())
