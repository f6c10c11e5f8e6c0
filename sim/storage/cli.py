"""Throughput and requests per second of SYSTEM by size of request (`prestep list storage`)."""

from __future__ import annotations

from typing import Any

import click

from prestep.sim.commands._shared import as_json, explained, handler

GROUP = "Predict"


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep storage lustre --threads 32\n"
    "  prestep storage nvme --cluster aws-p5 --transfer gpu_direct --gpus 1\n",
)
@click.argument("system")
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Threads of one host.",
)
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    help="A cluster whose first host asks: its disks and links count too.",
)
@click.option(
    "--transfer",
    type=click.Choice(("cpu_only", "cpu_gpu", "gpu_direct")),
    default="cpu_only",
    show_default=True,
    help="To the host's memory; on to GPUs, request by request; or past the memory (with --cluster).",
)
@click.option(
    "--gpus",
    type=click.IntRange(1),
    help="GPUs of the host that take part; default: all.",
)
@as_json
@explained
def command(**options: Any) -> None:
    handler("command", __package__).storage(**options)
