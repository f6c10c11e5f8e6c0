"""Clusters that were built, so that who asks again is given what is there."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.fabric import Fabric
from prestep.topologies.files import clusterfile
from prestep.topologies.files.bundled import cluster_names


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
    """

    most: int = 4
    most_links: int = 100_000
    clusters: dict[tuple[str, int | None], Fabric] = field(default_factory=dict)

    def read(self, name_or_file: str | Path, hosts: int | None = None) -> Fabric:
        """As `prestep.topologies.files.clusterfile.read`."""
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


#: What `prestep.topologies.load_cluster` reads from: one for the process.
SHARED = Library()


def load_cluster(
    name_or_file: str | Path,
    hosts: int | None,
    overrides: Mapping[str, str] | None,
    where: str,
) -> Fabric:
    """As `prestep.topologies.load_cluster`."""
    fabric = SHARED.read(name_or_file, hosts)
    return with_overrides(fabric, overrides, where) if overrides else fabric
