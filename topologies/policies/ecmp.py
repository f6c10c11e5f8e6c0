"""ECMP: every connection takes one of the equal-cost paths by a hash, and connections may meet on one cable.

`Fabric.spread` divides a transfer over all equal-cost paths, as adaptive routing does. Ethernet and static InfiniBand
routing keep a flow on one path instead, as `spread` does here.
"""

from __future__ import annotations

import hashlib

import numpy as np

from prestep.topologies.core.links import Floats, Ints
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric
from prestep.topologies.policies import between_nics
from prestep.topologies.routes.router import Paths


def spread(fabric: Fabric, src: str, dst: str, routing: Routing) -> tuple[Ints, Floats]:
    """`routing.flows` connections between two NICs, hashed one by one with `routing.seed`, share the bytes equally.

    The hash is of the GPUs and the connection, as ports of the five-tuple differ by process. Cables between the same
    two switches are one link here: that flows meet on one of them is not seen.
    """

    def choose(first: str, last: str, paths: Paths) -> Paths:
        edges = np.cumsum([share for _, share in paths])
        edges /= edges[-1]
        keys = (
            f"{routing.seed}/{src}/{dst}/{first}/{last}/{flow}"
            for flow in range(routing.flows)
        )
        return [(paths[drawn(key, edges)][0], 1.0) for key in keys]

    return between_nics(fabric, src, dst, choose)


def drawn(key: str, edges: Floats) -> int:
    """The path that a flow's key falls on; `edges` are the paths' shares, added up, the last one 1."""
    # Rounding may leave the last edge just below 1.
    return min(int(np.searchsorted(edges, hashed(key), side="right")), len(edges) - 1)


def hashed(text: str) -> float:
    """From 0 to below 1, the same on every machine and in every process."""
    return (
        int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")
        / 2.0**48
    )
