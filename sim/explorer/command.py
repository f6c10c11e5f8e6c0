"""What `prestep explore` does."""

from __future__ import annotations

import contextlib
import webbrowser

import click

from prestep.sim.commands._shared import talk
from prestep.sim.explorer.answers import Explorer
from prestep.sim.explorer.server import Server
from prestep.sim.tools.catalog import find_scenario


def explore(
    scenario: str | None, overrides: tuple[str, ...], port: int, open_: bool
) -> None:
    server = Server(Explorer(find_scenario(scenario), overrides), port)
    click.echo(server.address)
    talk("Ctrl-C stops it")
    if open_:
        webbrowser.open(server.address)
    with contextlib.suppress(KeyboardInterrupt), server:
        server.serve_forever()
