"""Print the JSON Schema of scenario files, or of what a command prints with --json (`prestep schema --list`)."""

from __future__ import annotations

import click

from prestep.sim.commands._shared import echo_json, explained
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim import outputs
    from prestep.sim.spec import grammar

GROUP = "Understand a result"
SCENARIO = "scenario"  # what is printed where no output is named


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
def command(output: str | None, list_: bool) -> None:
    if list_:
        click.echo("\n".join([SCENARIO, *outputs.names()]))
    elif output is None or output == SCENARIO:
        echo_json(grammar.json_schema())
    else:
        echo_json(outputs.schema(output))
