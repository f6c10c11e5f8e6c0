"""What `prestep schema` does."""

from __future__ import annotations

import click

from prestep.sim import outputs
from prestep.sim.commands._shared import echo_json
from prestep.sim.spec.grammar import json_schema

SCENARIO = "scenario"  # what is printed where no output is named


def schema(output: str | None, list_: bool) -> None:
    if list_:
        click.echo("\n".join([SCENARIO, *outputs.names()]))
    elif output in (None, SCENARIO):
        echo_json(json_schema())
    else:
        echo_json(outputs.schema(str(output)))
