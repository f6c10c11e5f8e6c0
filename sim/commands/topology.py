"""Look at a cluster: named (`prestep list clusters`) or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prestep.sim.commands._shared import explained, file_option, handler, scaled

GROUP = "Understand a result"


@click.group(help=__doc__, epilog="Example: prestep topology show dgx-h100")
def command() -> None:
    pass


@command.command(epilog="Example: prestep topology show dgx-h100 --picture dgx.svg")
@click.argument("cluster", metavar="NAME|FILE")
@scaled
@click.option(
    "--set",
    "overrides",
    metavar="SELECTOR=VALUE",
    multiple=True,
    help="Change it: nic[host3].bandwidth=0.5x.",
)
@file_option(
    "--picture",
    text="Draw the graph too (.png, .svg); several hosts folded by symmetry.",
)
@click.option(
    "--rings",
    is_flag=True,
    help="The rings and trees of all GPUs instead, as NCCL's log prints them.",
)
@explained
def show(**options: Any) -> None:
    """Print what the cluster is made of."""
    handler("topology").show(**options)


@command.command(epilog="Example: prestep topology check my-cluster.toml")
@click.argument("cluster", metavar="NAME|FILE")
@scaled
@explained
def check(**options: Any) -> None:
    """Check the cluster; exit 2 with every mistake."""
    handler("topology").check(**options)


@command.command(
    "export", epilog="Example: prestep topology export dgx-h100 -o dgx.graphml"
)
@click.argument("cluster", metavar="NAME|FILE")
@scaled
@file_option(
    "-o", "--output", text="File to write; default: the cluster's name, as .graphml."
)
@click.option(
    "--format",
    "format_",
    default="",
    help="graphml, json, infragraph; default: by the file's suffix.",
)
@explained
def export(**options: Any) -> None:
    """Write the graph for other tools."""
    handler("topology").export(**options)


@command.command(
    "import", epilog="Example: prestep topology import topo.xml -o mine.json"
)
@click.argument("file", type=click.Path(path_type=Path))
@file_option(
    "-o",
    "--output",
    text="File to write (.json); default: the file's name with that suffix.",
)
@click.option(
    "--format",
    "format_",
    default="",
    help="nccl_xml, nvidia_smi, slurm, ...; default: by the content.",
)
@explained
def import_(**options: Any) -> None:
    """Read a cluster of another tool; the JSON it writes works wherever a cluster's name does."""
    handler("topology").import_(**options)
