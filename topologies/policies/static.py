"""Static: every switch has one port for every destination, as InfiniBand's forwarding tables do (D-mod-k)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prestep.topologies.core.links import Floats, Ints
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric
from prestep.topologies.policies import between_nics
from prestep.topologies.routes.router import Paths


def spread(fabric: Fabric, src: str, dst: str, routing: Routing) -> tuple[Ints, Floats]:
    """One path for every pair of NICs: at each switch the way on depends on the destination alone.

    Destinations are numbered leaf by leaf. The first switch with k ways on takes number `d mod k`, the next one with
    k' takes `d / k mod k'`, and so on: neighbours under a leaf go over different spines. From the top down it begins
    again with `d mod k`.

    References
    ----------
    Zahavi, D-Mod-K routing providing non-blocking traffic for shift permutations on real life fat trees, 2010;
    OpenSM's ftree routing engine.
    """

    def choose(first: str, last: str, paths: Paths) -> Paths:
        if not last:
            return paths[:1]
        path = paths[0][0]
        src_ends = fabric.links.src[path].tolist()
        enters = fabric.links.dst[path].tolist().index(last) + 1
        leaves = src_ends.index(first) if first in src_ends else 0
        middle = np.array(list(_forwarded(fabric, first, last)), dtype=np.int64)
        return [(np.concatenate([path[:leaves], middle, path[enters:]]), 1.0)]

    return between_nics(fabric, src, dst, choose)


def _forwarded(fabric: Fabric, first: str, last: str) -> Iterator[int]:
    """Rows from NIC to NIC, each looked up at the node before it."""
    number = fabric.nic_numbers[last]
    node, hops, below = first, 0, 1
    while node != last:
        routes = fabric.routes(node, last)
        ways = sorted({int(rows[0]) for rows, _ in routes})
        # Once over the top the digits are used from the first again: where a switch has several ways down, too.
        below = below if hops < len(routes[0][0]) else 1
        row = ways[number // below % len(ways)]
        below *= len(ways)
        yield row
        node, hops = str(fabric.links.dst[row]), hops + 1
