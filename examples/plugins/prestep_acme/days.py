"""Days until SCENARIO has trained on so many tokens, at the predicted step time."""

from __future__ import annotations

import click

from prestep.sim import api
from prestep.sim.commands._shared import changes, explained
from prestep.sim.tools.catalog import find_scenario

GROUP = "Predict"  # the heading in `prestep --help`
DAY = 86_400.0


@click.command(help=__doc__, epilog="Example: prestep days llama1b-ddp4 --tokens 1e12")
@click.argument("scenario", required=False)
@click.option("--tokens", type=float, required=True, help="Tokens to train on.")
@changes
@explained
def command(scenario: str | None, tokens: float, overrides: tuple[str, ...]) -> None:
    result = api.simulate(find_scenario(scenario), overrides)
    rate = result.tokens_per_second_per_gpu * result.scenario["gpus"]
    click.echo(f"{tokens / rate / DAY:.4g}")
