"""Look at a cluster: named (`prestep list clusters`) or in a file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from prestep.sim import assignments
from prestep.sim.commands import _shared as shared
from prestep.sim.extras import lazily

with lazily():
    from prestep import topologies
    from prestep.sim.collectives import machine
    from prestep.sim.costs import measured
    from prestep.sim.exchanges import log_lines
    from prestep.topologies.files import interchange
    from prestep.topologies.show import listing

GROUP = "Understand a result"


@click.group(help=__doc__, epilog="Example: prestep topology show dgx-h100")
def command() -> None:
    pass


@command.command(epilog="Example: prestep topology show dgx-h100 --svg dgx.svg")
@click.argument("cluster", metavar="NAME|FILE")
@shared.scaled
@click.option(
    "--set",
    "overrides",
    metavar="SELECTOR=VALUE",
    multiple=True,
    help="Change it: nic[host3].bandwidth=0.5x.",
)
@shared.file_option(
    "--svg",
    "--picture",
    "picture",
    text="Draw it: tiers, cables, a host's inside; what is alike is drawn once.",
)
@click.option(
    "--rings",
    is_flag=True,
    help="The rings and trees of all GPUs instead, as NCCL's log prints them.",
)
@shared.as_json
@shared.explained
def show(
    cluster: str,
    hosts: int | None,
    overrides: tuple[str, ...],
    picture: Path | None,
    rings: bool,
    json_: bool,
) -> None:
    """Print what the cluster is made of."""
    changes = dict(map(assignments.split, overrides))
    fabric = topologies.load_cluster(cluster, hosts, changes, "--set")
    if rings:
        shared.show_page("\n".join(log_lines.printed(fabric, fabric.gpus, trees=72)))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        shared.show_result(
            json_,
            lambda: listing.to_dict(fabric),
            lambda: listing.render(fabric, width),
        )
    if picture is not None:
        listing.picture(fabric, picture)
        shared.talk(f"wrote {picture}")


@command.command(epilog="Example: prestep topology check my-cluster.toml")
@click.argument("cluster", metavar="NAME|FILE")
@shared.scaled
@shared.explained
def check(cluster: str, hosts: int | None) -> None:
    """Check the cluster; exit 2 with every mistake."""
    fabric = topologies.load_cluster(cluster, hosts)
    page = interchange.report_of(fabric, cluster)
    # What a run asks of any cluster: times of its GPUs and of NCCL on them.
    measured.gpu_of(fabric)
    machine.of(fabric)
    shared.show_page(page)


@command.command(
    "export", epilog="Example: prestep topology export dgx-h100 -o dgx.graphml"
)
@click.argument("cluster", metavar="NAME|FILE")
@shared.scaled
@shared.file_option(
    "-o", "--output", text="File to write; default: the cluster's name, as .graphml."
)
@click.option(
    "--format",
    "format_",
    default="",
    help="graphml, json, infragraph; default: by the file's suffix.",
)
@shared.explained
def export(cluster: str, hosts: int | None, output: Path | None, format_: str) -> None:
    """Write the graph for other tools."""
    fabric = topologies.load_cluster(cluster, hosts)
    path = output or Path(f"{Path(cluster).stem}.graphml")
    for loss in interchange.export_file(fabric, path, format_):
        shared.talk(f"not carried: {loss}")
    shared.talk(f"wrote {path}")


@command.command(
    "import", epilog="Example: prestep topology import topo.xml -o mine.json"
)
@click.argument("file", type=click.Path(path_type=Path))
@shared.file_option(
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
@click.option(
    "--host",
    metavar="NAME",
    default="",
    help="Model of every host, where the file only names them (Slurm, ibnetdiscover); default: dgx-h100.",
)
@shared.explained
def import_(file: Path, output: Path | None, format_: str, host: str) -> None:
    """Read a cluster of another tool; the JSON it writes works wherever a cluster's name does."""
    fabric, path, notes = interchange.import_file(file, output, format_, host)
    for note in notes:
        shared.talk(note)
    shared.talk(f"wrote {path}: {interchange.size_of(fabric)}")
