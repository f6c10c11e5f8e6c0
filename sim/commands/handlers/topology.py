"""What `prestep topology ...` does."""

from __future__ import annotations

from pathlib import Path

from prestep.sim import assignments
from prestep.sim.collectives import machine
from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import talk
from prestep.sim.costs import measured
from prestep.topologies import load_cluster
from prestep.topologies.files.interchange import export_file, import_file, report_of


def show(
    cluster: str,
    hosts: int | None,
    overrides: tuple[str, ...],
    picture: Path | None,
    rings: bool,
) -> None:
    # folding a cluster and drawing it are for this command alone
    from prestep.topologies.show import listing

    changes = dict(map(assignments.split, overrides))
    fabric = load_cluster(cluster, hosts, changes, "--set")
    if rings:
        # NCCL's search is slow to import, and few ask for it
        from prestep.sim.collectives.nccl import lines

        show_page("\n".join(lines.printed(fabric, fabric.gpus, trees=72)))
    else:
        show_page(listing.render(fabric))
    if picture is not None:
        listing.picture(fabric, picture)
        talk(f"wrote {picture}")


def check(cluster: str, hosts: int | None) -> None:
    fabric = load_cluster(cluster, hosts)
    page = report_of(fabric, cluster)
    # What a run asks of any cluster: times of its GPUs and of NCCL on them.
    measured.gpu_of(fabric)
    machine.of(fabric)
    show_page(page)


def export(cluster: str, hosts: int | None, output: Path | None, format_: str) -> None:
    path = output or Path(f"{Path(cluster).stem}.graphml")
    for lost in export_file(load_cluster(cluster, hosts), path, format_):
        talk(f"not carried: {lost}")
    talk(f"wrote {path}")


def import_(file: Path, output: Path | None, format_: str) -> None:
    fabric, path, notes = import_file(file, output, format_)
    for note in notes:
        talk(note)
    talk(f"wrote {path}: {len(fabric.hosts)} hosts, {len(fabric.gpus)} GPUs")
