"""Measure this machine: kernels, copies, collectives, training steps, disks; alone or under torchrun.

It changes no setting. `prestep calibrate` makes a cluster file of what it writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import explained, file_option, talk
from prestep.sim.extras import lazily

with lazily():
    from prestep.validation.measure import controller
    from prestep.validation.measure import options as chosen

GROUP = "Your programs, traces and machines"


@click.command(help=__doc__, epilog="Example: prestep measure -o mine.zip --minutes 5")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Zip file to write.",
)
@click.option(
    "--minutes", type=float, default=5.0, show_default=True, help="Time for everything."
)
@click.option(
    "--gpus", type=click.IntRange(1), help="GPUs of this host to use; default: all."
)
@click.option(
    "--only",
    default="",
    metavar="PROBE,...",
    help="Probes to run; `prestep list probes`.",
)
@click.option("--without", default="", metavar="PROBE,...", help="Probes to leave out.")
@file_option(
    "--cases",
    text="Training cases to run in place of the usual ones: JSON lines, as sets of validation have.",
)
@click.option(
    "--no-nvls",
    is_flag=True,
    help="Keep NVLink multicast off, in NCCL, PyTorch and NVSHMEM.",
)
@click.option(
    "--rehearse",
    is_flag=True,
    help="Tiny sizes on CPUs: tries the command, measures nothing.",
)
@click.option(
    "--size-limit",
    type=click.FloatRange(0.1),
    metavar="MiB",
    help="Leave out traces beyond.",
)
@click.option("--force", is_flag=True, help="Replace the file.")
@explained
def command(
    only: str, without: str, no_nvls: bool, size_limit: float | None, **options: Any
) -> None:
    asked = chosen.Options(
        only=chosen.split(only),
        without=chosen.split(without),
        nvls=not no_nvls,
        size_limit=size_limit * 2**20 if size_limit else None,
        **options,
    )
    controller.measure(asked.checked(), talk)
