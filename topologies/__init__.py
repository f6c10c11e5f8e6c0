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

from topologies.files.bundled import CLUSTERS, cluster_names

if TYPE_CHECKING:
    from topologies.fabric import Fabric

__all__ = ["CLUSTERS", "cluster_names", "larger_cluster", "load_cluster"]


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
    # Here, and not above: `prestep --help` and a listing of names need none of it.
    from topologies.files import library

    return library.load_cluster(name_or_file, hosts, overrides, where)


def larger_cluster(name: str | None, gpus: int) -> str:
    """A hint at clusters with room for `gpus`, where the named one is a single host; "" where there is none."""
    from topologies.files.larger import larger  # for an error alone

    return larger(name, gpus)
