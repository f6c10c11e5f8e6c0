"""The commands `prestep topology ...`."""

from __future__ import annotations

from pathlib import Path

import click

from sim.commands._shared import explained, file_option, scaled, talk


@click.group(epilog="Example: prestep topology show dgx-h100")
def command() -> None:
    """Look at a cluster: named (`prestep list clusters`) or in a file."""


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
def show(
    cluster: str,
    hosts: int | None,
    overrides: tuple[str, ...],
    picture: Path | None,
    rings: bool,
) -> None:
    """Print what the cluster is made of."""
    from sim.collectives.nccl import lines
    from sim.strict import split_override
    from topologies import load_cluster
    from topologies.show import listing

    fabric = load_cluster(cluster, hosts, dict(map(split_override, overrides)), "--set")
    click.echo(
        "\n".join(lines.told(fabric, fabric.gpus, trees=72))
        if rings
        else listing.render(fabric)
    )
    if picture is not None:
        listing.picture(fabric, picture)
        talk(f"wrote {picture}")


@command.command(epilog="Example: prestep topology check my-cluster.toml")
@click.argument("cluster", metavar="NAME|FILE")
@scaled
@explained
def check(cluster: str, hosts: int | None) -> None:
    """Check the cluster; exit 2 with every mistake."""
    from topologies.files.interchange import check_report

    click.echo(check_report(cluster, hosts))


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
def export_topology(
    cluster: str, hosts: int | None, output: Path | None, format_: str
) -> None:
    """Write the graph for other tools."""
    from topologies import load_cluster
    from topologies.files.interchange import export_file

    path = output or Path(f"{Path(cluster).stem}.graphml")
    for lost in export_file(load_cluster(cluster, hosts), path, format_):
        talk(f"not carried: {lost}")
    talk(f"wrote {path}")


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
def import_topology(file: Path, output: Path | None, format_: str) -> None:
    """Read a cluster of another tool; the JSON it writes works wherever a cluster's name does."""
    from topologies.files.interchange import import_file

    fabric, path, notes = import_file(file, output, format_)
    for note in notes:
        talk(note)
    talk(f"wrote {path}: {len(fabric.hosts)} hosts, {len(fabric.gpus)} GPUs")
