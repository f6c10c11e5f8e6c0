"""Shortest: one path between two NICs, the first of the best; nothing is spread over the network."""

from __future__ import annotations

from prestep.topologies.core.links import Floats, Ints
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric
from prestep.topologies.policies import between_nics


def spread(fabric: Fabric, src: str, dst: str, routing: Routing) -> tuple[Ints, Floats]:
    """Fewest hops, then lowest latency, then most cables, then link order: what a spanning tree would leave."""
    return between_nics(fabric, src, dst, lambda first, last, paths: paths[:1])
