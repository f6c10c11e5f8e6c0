"""Look at this environment (versions, packages in the way, what is missing), or say whether a log of NCCL is normal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import as_json, changes, explained, handler

GROUP = "Trust"


@click.group(
    help=__doc__ + " Exit 1 if something is wrong.",
    invoke_without_command=True,
    epilog="\b\n"
    "Examples:\n"
    "  prestep doctor --json\n"
    "  prestep doctor nccl all_reduce_perf.log --cluster dgx-h100\n",
)
@as_json
@click.pass_context
@explained
def command(context: click.Context, **options: Any) -> None:
    if context.invoked_subcommand is None:
        handler("command", __package__).doctor(**options)


@command.command(
    epilog="\b\n"
    "Examples:\n"
    "  prestep doctor nccl all_reduce_perf.log\n"
    "  prestep doctor nccl perf/*.log nccl-debug.log --cluster mine.toml --json\n"
)
@click.argument(
    "logs",
    nargs=-1,
    required=True,
    metavar="LOG...",
    type=click.Path(path_type=Path, dir_okay=False),
)
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    help="What the log should have run on; default: recognised from the log.",
)
@click.option(
    "--hosts", type=click.IntRange(1), help="Hosts of the run, where no log says it."
)
@click.option("--op", default="", help="Operation, where no log says it: all_reduce.")
@changes
@as_json
@explained
def nccl(**options: Any) -> None:
    """Is this log of nccl-tests (text or -J) or NCCL_DEBUG normal, and if not, why? Exit 1 if it is abnormal."""
    handler("command", __package__).nccl(**options)
