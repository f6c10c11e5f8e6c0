"""Flows that each take one of the equal-cost paths by a hash, as ECMP has them, on the rows of a fabric."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from prestep.topologies.core.links import Floats, Ints, groups
from prestep.topologies.fabric import Fabric
from prestep.topologies.policies.ecmp import drawn, hashed
from prestep.topologies.routes.batch import Batch

#: GPUs at both ends, and the number of the connection between them, where there are several (queue pairs, sockets).
Flow = tuple[str, str, int]


def path(
    fabric: Fabric, src: str, dst: str, flow: int = 0, seed: int = 0
) -> tuple[Ints, Floats]:
    """Rows of `fabric.links` that a flow takes, and its bytes on each per byte sent, as `Fabric.spread` gives them.

    The choice is one for the whole path, with the weights of `Fabric.routes`: as a hash of the five-tuple with another
    seed at every switch. Paths that do not leave the host are not hashed: NVSwitches spread by address.
    """
    routes = fabric.routes(src, dst)
    if len(routes) == 1 or not fabric.leaves_host(routes):
        return fabric.spread(src, dst)
    at = drawn(f"{seed}/{src}/{dst}/{flow}", np.cumsum([share for _, share in routes]))
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
    draws = np.array([hashed(f"{seed}/{a}/{b}/{number}") for a, b, number in listed])
    rows_of = _drawn(fabric._batch, src, dst, draws)
    return [
        path(fabric, *flow, seed) if rows is None else (rows, np.ones(len(rows)))
        for flow, rows in zip(listed, rows_of, strict=True)
    ]


def loads(fabric: Fabric, flows: Iterable[Flow], seed: int = 0) -> Floats:
    """Flows on every row of `fabric.links`: above 1 on links of their rate, flows collide.

    A flow that NVSwitches spread counts in parts.
    """
    total = np.zeros(len(fabric.links))
    for src, dst, flow in flows:
        rows, share = path(fabric, src, dst, flow, seed)
        total[rows] += share
    return total


def _drawn(batch: Batch, src: Ints, dst: Ints, draw: Floats) -> list[Ints | None]:
    """One path of each pair, rows ascending: the `draw`-th (from 0 to below 1) of all that are equally good.

    None where hop counts do not show that the ways to the switches are the only ones.
    """
    found: list[Ints | None] = [None] * len(src)
    apart = batch._in_patterns(src, dst) & ~batch._same_host(src, dst)
    trips, _ = batch._trips(src, dst, np.flatnonzero(apart))
    for trip in trips:
        ways: dict[int, list[int]] = {at: [] for at in trip.pairs.tolist()}
        for piece in trip.pieces:
            lines = zip(piece.pairs.tolist(), piece.rows.tolist(), strict=True)
            for at, rows in lines:
                ways[at] += rows
        size = len(batch.stubs.outside)
        for value, which in groups(trip.first * size + trip.last):
            s, t = divmod(value, size)
            if s == t:
                continue
            lines_between = batch.net.lines(s, t)
            for at in trip.pairs[which].tolist():
                ways[at] += lines_between[int(draw[at] * len(lines_between))].tolist()
        for at, way in ways.items():
            found[at] = np.array(sorted(way), dtype=np.int64)
    return found
