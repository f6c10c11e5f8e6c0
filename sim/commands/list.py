"""List the names that scenarios and commands take; without WHAT, what can be listed."""

from __future__ import annotations

from typing import Any

import click

from prestep.sim.commands._shared import explained, handler

GROUP = "Understand a result"


#: What can be listed, and what it is.
KINDS = {
    "clusters": "machines: hosts, GPUs and network ([cluster] name)",
    "models": "models with their sizes ([model] name)",
    "scenarios": "bundled jobs that `prestep run` takes by name",
    "frameworks": "who runs the step ([training] framework)",
    "recipes": "trainers whose own files `prestep run` takes",
    "schedules": "pipeline schedules ([parallel] schedule)",
    "precisions": "number formats ([training] precision)",
    "optimizers": "optimizers ([training] optimizer)",
    "gpus": "GPUs, and what the times of their kernels rest on",
    "collectives": "how GPUs exchange data, NCCL's algorithms and others",
    "algorithms": "algorithms that NCCL can be forced to",
    "topologies": "families of clusters, for cluster files",
    "routings": "how a network chooses among ways",
    "storage": "storage systems, for checkpoints and data",
    "sets": "measurements that `prestep validate` compares with",
    "probes": "what `prestep measure` can measure",
    "exporters": "formats of a result",
    "extensions": "what adds commands, sections, readers, ... to prestep",
}


@click.command(help=__doc__, epilog="Example: prestep list clusters --long")
@click.argument(
    "kind", type=click.Choice(tuple(KINDS)), required=False, metavar="[WHAT]"
)
@click.option(
    "-l",
    "--long",
    "long_",
    is_flag=True,
    help="Say what each thing is, as on a terminal.",
)
@click.option(
    "--json",
    "json_",
    is_flag=True,
    help="What each thing is, by name; of GPUs what each family of kernels rests on.",
)
@explained
def command(kind: str | None, **options: Any) -> None:
    if kind is None:
        handler("listing").show_kinds(KINDS, options["json_"])
    else:
        handler("listing").show(kind, **options)
