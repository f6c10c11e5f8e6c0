"""Write a scenario for MODEL on a cluster: five questions, or five options.

The job is sharded over all GPUs (FSDP), with the largest micro batch that fits; `prestep search` finds other layouts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import Count, explained, handler

GROUP = "Predict"


@click.command(
    help=__doc__,
    epilog="Example: prestep init --model llama3-8b --cluster dgx-h100-superpod --hosts 16 --seq-len 8192 "
    "--global-batch 256 -o job.toml",
)
@click.argument("named", metavar="[MODEL]", required=False)
@click.option("--model", metavar="NAME|FILE", help="`prestep list models`, or a file.")
@click.option(
    "--cluster",
    "--gpu",
    metavar="NAME|FILE",
    help="`prestep list clusters`, a GPU of theirs (h100), or a file.",
)
@click.option(
    "--hosts", "--nodes", type=Count(), help="Hosts of the cluster (also --nodes)."
)
@click.option("--gpus", type=Count(), help="Instead of --hosts: GPUs of whole hosts.")
@click.option("--seq-len", type=Count(), help="Tokens of a sample.")
@click.option("--global-batch", type=Count(), help="Samples of a step.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("job.toml"),
    show_default=True,
    help="File to write.",
)
@click.option("--force", is_flag=True, help="Write over a file that exists.")
@explained
def command(**options: Any) -> None:
    handler("init").init(**options)
