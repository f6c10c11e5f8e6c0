"""Builds and reads clusters: graphs of GPUs, switches, CPUs, memory, NICs and disks.

>>> from topologies import load_cluster
>>> load_cluster("dgx-h100").gpus[0]
'gpu0'

Nothing is imported until a cluster is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topologies.fabric import Fabric

__all__ = ["CLUSTERS", "cluster_names", "load_cluster"]

CLUSTERS = Path(__file__).parent / "clusters"


def cluster_names() -> list[str]:
    """Names of the bundled clusters (`topologies/clusters/*.toml`), sorted."""
    return sorted(path.stem for path in CLUSTERS.glob("*.toml"))


def load_cluster(
    name_or_file: str | Path,
    hosts: int | None = None,
    overrides: Mapping[str, str] | None = None,
    where: str = "cluster.set",
) -> Fabric:
    """Build a bundled cluster ("dgx-h100") or the one a TOML file describes.

    Parameters
    ----------
    name_or_file
        A name of `cluster_names()`, or a path that ends in `.toml`.
    hosts
        Number of hosts, for the families that scale; None leaves the cluster's own.
    overrides
        What-ifs by `selector.attribute`, for example `{"nvlink.bandwidth": "2x"}`; see `topologies.edit.overrides`.
    where
        What to call the overrides in errors.

    Raises
    ------
    InputError
        With every mistake in the file; or every override that is wrong or matches nothing.
    """
    from topologies.files.kept import read

    fabric = read(name_or_file, hosts)
    return fabric.with_overrides(overrides, where) if overrides else fabric
