"""Write the scenario that a trainer's RECIPE is: its model, batch, layout and switches, on a cluster.

Megatron-LM's arguments, Megatron-Bridge, NeMo, NeMo Automodel, torchtitan, DeepSpeed, Hugging Face, Primus, MLPerf.
The recipe is read, never executed. A key that changes a step and is not simulated is an error, unless --lenient.
"""

from __future__ import annotations

from pathlib import Path
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
    help=__doc__,
    epilog="Example: prestep import-recipe llama3_8b.toml --cluster dgx-h100 --hosts 64 -o job.toml",
)
@click.argument("recipe", type=click.Path(path_type=Path))
@changes
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; default: stdout.",
)
@click.option("--force", is_flag=True, help="Write over a file that exists.")
@on_cluster
@on_hosts
@of_recipe
@explained
def command(**options: Any) -> None:
    handler("_command", __package__).import_recipe(**options)
