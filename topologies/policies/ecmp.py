"""ECMP: every connection takes one of the equal-cost paths by a hash, and connections may meet on one cable.

`Fabric.spread` divides a transfer over all equal-cost paths, as adaptive routing does. Ethernet and static InfiniBand
routing keep a flow on one path instead: `spread` does so for the flows of a routing policy, `path` for any flow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from prestep.topologies.core.links import Floats, Ints
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric
from prestep.topologies.policies import between_nics
from prestep.topologies.routes.router import Paths

Flow = tuple[str, str, int]


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
        return [(paths[_drawn(key, edges)][0], 1.0) for key in keys]

    return between_nics(fabric, src, dst, choose)


def path(
    fabric: Fabric, src: str, dst: str, flow: int = 0, seed: int = 0
) -> tuple[Ints, Floats]:
    """Rows of `fabric.links` that a flow takes, and its bytes on each per byte sent, as `Fabric.spread` gives them.

    Parameters
    ----------
    flow
        Number of the connection between the two ends, where there are several (queue pairs, sockets).
    seed
        Of the switches' hash: another one, another draw.

    Raises
    ------
    InputError
        If an end is no node, or there is no way between them.

    Notes
    -----
    The choice is one for the whole path, with the weights of `Fabric.routes`: as a hash of the five-tuple with another
    seed at every switch. Paths that do not leave the host are not hashed: NVSwitches spread by address.
    """
    routes = fabric.routes(src, dst)
    if len(routes) == 1 or not fabric.leaves_host(routes):
        return fabric.spread(src, dst)
    at = _drawn(f"{seed}/{src}/{dst}/{flow}", np.cumsum([share for _, share in routes]))
    rows = np.sort(routes[at][0])
    return rows, np.ones(len(rows))


def paths(
    fabric: Fabric, flows: Iterable[Flow], seed: int = 0
) -> list[tuple[Ints, Floats]]:
    """`path` of many flows; where equal paths differ in nothing, without looking at all of them.

    Beyond `prestep.topologies.routes.router.MAX_PATHS` paths the draw is over all of them, not over those that routes
    keep.
    """
    listed = list(flows)
    src, dst = (fabric.positions([flow[k] for flow in listed]) for k in (0, 1))  # type: ignore[misc]
    draws = np.array([_hash(f"{seed}/{a}/{b}/{number}") for a, b, number in listed])
    return [
        path(fabric, *flow, seed) if rows is None else (rows, np.ones(len(rows)))
        for flow, rows in zip(listed, fabric.drawn(src, dst, draws), strict=True)
    ]


def loads(fabric: Fabric, flows: Iterable[Flow], seed: int = 0) -> Floats:
    """Flows on every row of `fabric.links`: above 1 on links of their rate, flows collide.

    Parameters
    ----------
    flows
        `(src, dst, number)` of each.

    Returns
    -------
    array of float
        One number per row of `fabric.links`; a flow that NVSwitches spread counts in parts.
    """
    total = np.zeros(len(fabric.links))
    for src, dst, flow in flows:
        rows, share = path(fabric, src, dst, flow, seed)
        total[rows] += share
    return total


def _drawn(key: str, edges: Floats) -> int:
    """The path that a flow's key falls on; `edges` are the paths' shares, added up, the last one 1."""
    # Rounding may leave the last edge just below 1.
    return min(int(np.searchsorted(edges, _hash(key), side="right")), len(edges) - 1)


def _hash(text: str) -> float:
    """From 0 to below 1, the same on every machine and in every process."""
    return (
        int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")
        / 2.0**48
    )
