"""Serve a page on this machine whose sliders change SCENARIO: step time, shares and timeline at once.

Nothing is written and nobody else can reach it; stop it with Ctrl-C.
"""

from __future__ import annotations

import contextlib
import webbrowser

import click

from prestep.sim.commands._shared import changes, explained, of_scenario, talk
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.explorer import answers, server
    from prestep.sim.tools import catalog

GROUP = "Predict"


@click.command(
    help=__doc__, epilog="Example: prestep explore examples/superpod-fsdp.toml --open"
)
@click.argument("scenario", required=False)
@changes
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Port on 127.0.0.1; default: a free one.",
)
@click.option("--open", "open_", is_flag=True, help="Open the page in the browser.")
@of_scenario
@explained
def command(
    scenario: str | None, overrides: tuple[str, ...], port: int, open_: bool
) -> None:
    explorer = answers.Explorer(catalog.find_scenario(scenario), overrides)
    page = server.Server(explorer, port)
    click.echo(page.address)
    talk("Ctrl-C stops it")
    if open_:
        webbrowser.open(page.address)
    with contextlib.suppress(KeyboardInterrupt), page:
        page.serve_forever()
