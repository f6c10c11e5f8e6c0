"""Builds and reads clusters: graphs of GPUs, switches, CPUs, memory, NICs and disks.

>>> from prestep.topologies import load_cluster
>>> load_cluster("dgx-h100").gpus[0]
'gpu0'

Nothing is imported until a cluster is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prestep.topologies.files.bundled import CLUSTERS, cluster_names

if TYPE_CHECKING:
    import networkx as nx

    from prestep.topologies.fabric import Fabric

__all__ = [
    "CLUSTERS",
    "cluster_name",
    "cluster_names",
    "cluster_with_gpu",
    "gpu_models",
    "larger_cluster",
    "load_cluster",
    "several_hosts",
]


def load_cluster(
    cluster: str | Path | nx.Graph[Any] | Fabric,
    hosts: int | None = None,
    overrides: Mapping[str, str] | None = None,
    where: str = "cluster.set",
) -> Fabric:
    """Build a bundled cluster ("dgx-h100"), or the one that a file or a graph describes.

    Parameters
    ----------
    cluster
        A name of `cluster_names()`; a path of a cluster file (`.toml`), of GraphML or of another tool; a NetworkX graph
        with the attributes of docs/graphs.md.
    hosts
        Number of hosts, for the families that scale; None leaves the cluster's own.
    overrides
        What-ifs by `selector.attribute`, for example `{"nvlink.bandwidth": "2x"}`; see
        `prestep.topologies.edit.overrides`.
    where
        What to call the overrides in errors.

    Raises
    ------
    InputError
        With every mistake in the file or the graph; or every override that is wrong or matches nothing.
    """
    fabric: Fabric = _library().load_cluster(cluster, hosts, overrides, where)
    return fabric


def cluster_name(cluster: str | Path | nx.Graph[Any] | Fabric) -> str:
    """A name for `load_cluster` and `cluster.name` in this process: of a graph, one that says what is in it.

    Raises
    ------
    InputError
        With every mistake in the graph.
    """
    name: str = _library().SHARED.name_of(cluster)
    return name


def _library() -> Any:
    # Here, and not above: `prestep --help` and a listing of names need none of it.
    from prestep.topologies.files import library

    return library


def larger_cluster(name: str | None, gpus: int) -> str:
    """A hint at clusters with room for `gpus`, where the named one is a single host; "" where there is none."""
    hint: str = _larger().larger(name, gpus)
    return hint


def several_hosts(name: str) -> str:
    """The cluster of several hosts like the named one, which is a single host; "" where there is none."""
    cluster: str = _larger().several_hosts(name)
    return cluster


def cluster_with_gpu(gpu: str) -> str:
    """A bundled cluster with GPUs of a model; "" where there is none."""
    cluster: str = _larger().with_gpu(gpu)
    return cluster


def gpu_models() -> list[str]:
    """Models of GPUs that bundled clusters have, sorted."""
    models: list[str] = _larger().gpu_models()
    return models


def _larger() -> Any:
    # most scenarios need none of it
    from prestep.topologies.files import larger

    return larger
