"""Throughput and requests per second of SYSTEM by size of request (`prestep list storage`)."""

from __future__ import annotations

import click

from prestep.sim.commands._shared import as_json, explained, misused, show_result
from prestep.sim.extras import lazily

with lazily():
    from prestep import topologies
    from prestep.sim.storage import curve, systems

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
def command(
    system: str,
    threads: int,
    cluster: str | None,
    transfer: curve.Transfer,
    gpus: int | None,
    json_: bool,
) -> None:
    chosen = systems.load_system(system, "command line", "SYSTEM")
    way = _way(chosen, cluster, transfer, gpus)
    show_result(
        json_,
        lambda: curve.table_of(chosen, threads, way),
        lambda: curve.render(chosen, threads, way, transfer),
    )


def _way(
    system: systems.System,
    cluster: str | None,
    transfer: curve.Transfer,
    gpus: int | None,
) -> curve.Way | None:
    """The way on a cluster, if one is named."""
    if cluster is not None:
        return curve.way_of(
            system, topologies.load_cluster(cluster), transfer, gpus or 0
        )
    if transfer != "cpu_only" or gpus is not None:
        raise misused("--cluster", "nothing", "a cluster, whose GPUs take part")
    return None
