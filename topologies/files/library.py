"""Clusters that were built, so that who asks again is given what is there."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.files import clusterfile
from prestep.topologies.files.bundled import GRAPH, cluster_names

if TYPE_CHECKING:
    import networkx as nx


@dataclass
class Library:
    """Reads clusters; the bundled ones that were built last stay, and are given out as copies.

    Files of users are read each time: they may have changed. Copies share the routes that were found, nothing else.

    Attributes
    ----------
    most, most_links
        Clusters that stay, and links beyond which one stays only until the next such.
    clusters
        Those that stay, by name and number of hosts; the oldest first.
    graphs, most_graphs
        Clusters that were given as graphs, by the names that `name_of` gave them; those of the last graphs.
    """

    most: int = 4
    most_links: int = 100_000
    clusters: dict[tuple[str, int | None], Fabric] = field(default_factory=dict)
    most_graphs: int = 256
    graphs: dict[str, Fabric] = field(default_factory=dict)

    def name_of(self, cluster: str | Path | nx.Graph[Any] | Fabric) -> str:
        """A name by which `read` finds a cluster in this process; that of a graph says what is in it."""
        if isinstance(cluster, str | Path):
            return str(cluster)
        fabric = _of_graph(cluster)
        name = f"{GRAPH}{fabric.name}-{_digest(fabric)}"
        # Without what was derived from it: routes take many times the room of links.
        self.graphs = {**self.graphs, name: copy.copy(fabric)}
        for oldest in list(self.graphs)[: -self.most_graphs]:
            del self.graphs[oldest]
        return name

    def read(
        self, cluster: str | Path | nx.Graph[Any] | Fabric, hosts: int | None = None
    ) -> Fabric:
        """As `prestep.topologies.files.clusterfile.read`, and of a graph the cluster that it describes."""
        if not isinstance(cluster, str | Path):
            return clusterfile.checked(_of_graph(cluster), "cluster", hosts)
        if str(cluster) in self.graphs:
            held = copy.copy(self.graphs[str(cluster)])
            return clusterfile.checked(held, "cluster", hosts)
        return self._named(cluster, hosts)

    def _named(self, name_or_file: str | Path, hosts: int | None) -> Fabric:
        if isinstance(name_or_file, Path) or name_or_file not in cluster_names():
            return clusterfile.read(name_or_file, hosts)
        key = name_or_file, hosts
        if key not in self.clusters:
            self._add(key, clusterfile.read(name_or_file, hosts))
        original = self.clusters[key]
        return copy.copy(original).with_routes_of(original)

    def _add(self, key: tuple[str, int | None], built: Fabric) -> None:
        if self._is_large(built):
            others = self.clusters.items()
            self.clusters = {k: one for k, one in others if not self._is_large(one)}
        self.clusters[key] = built
        if len(self.clusters) > self.most:
            oldest = next(iter(self.clusters))
            del self.clusters[oldest]

    def _is_large(self, fabric: Fabric) -> bool:
        return len(fabric.links) > self.most_links


def _of_graph(cluster: nx.Graph[Any] | Fabric) -> Fabric:
    return cluster if isinstance(cluster, Fabric) else Fabric.from_graph(cluster)


def _digest(fabric: Fabric) -> str:
    """What tells a cluster from another of the same name."""
    state = fabric.__getstate__()
    nodes, links = state.pop("nodes"), state.pop("links")
    columns = [getattr(links, key).tolist() for key in links.__dataclass_fields__]
    content = repr((nodes, columns, list(state.items())))
    return hashlib.sha256(content.encode()).hexdigest()[:8]


#: What `prestep.topologies.load_cluster` reads from: one for the process.
SHARED = Library()


def load_cluster(
    cluster: str | Path | nx.Graph[Any] | Fabric,
    hosts: int | None,
    overrides: Mapping[str, str] | None,
    where: str,
) -> Fabric:
    """As `prestep.topologies.load_cluster`."""
    fabric = SHARED.read(cluster, hosts)
    return with_overrides(fabric, overrides, where) if overrides else fabric
