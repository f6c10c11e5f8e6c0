"""Serve prestep to agents as tools, over stdin and stdout (Model Context Protocol)."""

from __future__ import annotations

from pathlib import Path

import click

from prestep.sim.commands._shared import explained
from prestep.sim.errors import InputError, Mistake
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.mcp import server  # needs the extra, which may be missing

GROUP = "Predict"


@click.command(
    help=__doc__ + "\n\nTools read files below PATH, and without one bundled names "
    "and scenarios that come as text alone. They write nothing.",
    epilog="Example: prestep mcp scenarios/ traces/ --time-limit 120",
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="End a call that takes longer.",
)
@explained
def command(paths: tuple[Path, ...], time_limit: float) -> None:
    expected = "a file or folder that tools may read"
    gone = [
        Mistake("PATH", "", f"{path}, not there", expected)
        for path in paths
        if not path.exists()
    ]
    InputError.check(gone)
    server.serve(paths, time_limit)
