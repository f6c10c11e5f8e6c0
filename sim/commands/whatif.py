"""The command `prestep whatif`."""

from __future__ import annotations

from pathlib import Path

import click

from sim.commands._shared import (
    as_json,
    changes,
    echo_json,
    explained,
    file_option,
    talk,
)


@click.command(
    epilog="\b\n"
    "Examples:\n"
    "  prestep whatif llama8b-fsdp4 --set nvlink.bandwidth=2x\n"
    "  prestep whatif llama1b-ddp4 --each link-kind\n"
)
@click.argument("scenario")
@changes
@click.option(
    "--each",
    multiple=True,
    metavar="WHAT",
    help="Try each link-kind, tier, latency, gpu, rank, host, link; all.",
)
@click.option(
    "--factors", default="0.5,2", show_default=True, help="What --each multiplies by."
)
@file_option("--plot", text="Draw what --each found (.svg, .png; .html with plotly).")
@as_json
@explained
def command(
    scenario: str,
    overrides: tuple[str, ...],
    each: tuple[str, ...],
    factors: str,
    plot: Path | None,
    json_: bool,
) -> None:
    """Predict SCENARIO as it is and with changes, side by side; or find out which element matters most."""
    from sim.studies import whatif_command

    if each:
        table = whatif_command.each(scenario, overrides, each, factors, plot)
        echo_json(table) if json_ else click.echo(whatif_command.page(table))
        if plot is not None:
            talk(f"wrote {whatif_command.draw(table, plot)}")
        return
    compared = whatif_command.side_by_side(scenario, overrides, plot)
    echo_json(compared) if json_ else click.echo(whatif_command.page(compared))
