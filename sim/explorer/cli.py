"""Serve a page on this machine whose sliders change SCENARIO: step time, shares and timeline at once.

Nothing is written and nobody else can reach it; stop it with Ctrl-C.
"""

from __future__ import annotations

from typing import Any

import click

from prestep.sim.commands._shared import (
    changes,
    explained,
    handler,
    of_recipe,
    on_cluster,
    on_hosts,
)

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
@on_cluster
@on_hosts
@of_recipe
@explained
def command(**options: Any) -> None:
    handler("command", __package__).explore(**options)
