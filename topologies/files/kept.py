"""Bundled clusters that were built last: who predicts one run after the other builds a cluster once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

from topologies.files import clusterfile

if TYPE_CHECKING:
    from topologies.fabric import Fabric

MOST, MOST_LINKS = 4, 100_000  # clusters, and links of one
_KEPT: dict[tuple[str, int | None], Fabric] = {}


def read(name_or_file: str | Path, hosts: int | None = None) -> Fabric:
    """As `topologies.files.clusterfile.read`; a bundled cluster that was built before is given out as a copy.

    Files of users are read each time: they may have changed. Copies share the routes that were found, nothing else.
    """
    if (
        isinstance(name_or_file, Path)
        or name_or_file not in clusterfile.cluster_names()
    ):
        return clusterfile.read(name_or_file, hosts)
    key = name_or_file, hosts
    if key not in _KEPT:
        made = clusterfile.read(name_or_file, hosts)
        if len(made.links) > MOST_LINKS:
            return made
        _KEPT[key] = made
        if len(_KEPT) > MOST:
            del _KEPT[next(iter(_KEPT))]
    return copy.copy(_KEPT[key]).with_routes_of(_KEPT[key])
