"""The command `prestep explore`."""

from __future__ import annotations

import contextlib

import click

from sim.commands._shared import changes, explained, talk


@click.command(epilog="Example: prestep explore examples/superpod-fsdp.toml --open")
@click.argument("scenario", required=False)
@changes
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Port on 127.0.0.1; default: a free one.",
)
@click.option("--open", "open_", is_flag=True, help="Open the page in the browser.")
@explained
def command(
    scenario: str | None, overrides: tuple[str, ...], port: int, open_: bool
) -> None:
    """Serve a page on this machine whose sliders change SCENARIO: step time, shares and timeline at once.

    Nothing is written and nobody else can reach it; stop it with Ctrl-C.
    """
    from sim.studies.explorer.answers import Explorer
    from sim.studies.explorer.server import Server
    from sim.tools.catalog import find_scenario

    server = Server(Explorer(find_scenario(scenario), overrides), port)
    click.echo(server.address)
    talk("Ctrl-C stops it")
    if open_:
        import webbrowser

        webbrowser.open(server.address)
    with contextlib.suppress(KeyboardInterrupt), server:
        server.serve_forever()
