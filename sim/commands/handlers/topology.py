"""What `prestep topology ...` does."""

from __future__ import annotations

from pathlib import Path

from sim import assignments
from sim.commands._pages import show_page
from sim.commands._shared import talk
from topologies import load_cluster
from topologies.files.interchange import check_report, export_file, import_file


def show(
    cluster: str,
    hosts: int | None,
    overrides: tuple[str, ...],
    picture: Path | None,
    rings: bool,
) -> None:
    # folding a cluster and drawing it are for this command alone
    from topologies.show import listing

    changes = dict(map(assignments.split, overrides))
    fabric = load_cluster(cluster, hosts, changes, "--set")
    if rings:
        # NCCL's search is slow to import, and few ask for it
        from sim.collectives.nccl import lines

        show_page("\n".join(lines.printed(fabric, fabric.gpus, trees=72)))
    else:
        show_page(listing.render(fabric))
    if picture is not None:
        listing.picture(fabric, picture)
        talk(f"wrote {picture}")


def check(cluster: str, hosts: int | None) -> None:
    show_page(check_report(cluster, hosts))


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
