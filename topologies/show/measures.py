"""Numbers of a whole cluster."""

from __future__ import annotations

from collections.abc import Collection

from sim.errors import InputError, Mistake
from topologies.core.kinds import STORAGE_LINKS
from topologies.fabric import Fabric


def bisection(fabric: Fabric, kinds: Collection[str] = (), wire: bool = True) -> float:
    """Bytes/s between the first half of the GPUs and the second, both directions together.

    Parameters
    ----------
    kinds
        Count only links of these kinds; all of them when empty.
    wire
        Datasheet rates (`links.raw`), as vendors quote it; else payload.

    Raises
    ------
    InputError
        If there are fewer than two GPUs.

    Notes
    -----
    A maximum flow from a source before one half to a sink behind the other, once in each direction.
    """
    import networkx as nx

    half = len(fabric.gpus) // 2
    if not half:
        raise InputError(Mistake(fabric.name, "bisection", "1 GPU", "at least 2"))
    links = fabric.links
    rate = links.raw if wire else links.bandwidth
    graph: nx.DiGraph[object] = nx.DiGraph()
    # Objects, not names: no node of a cluster can be mistaken for them.
    source, sink = object(), object()
    for row in range(len(links)):
        # Storage has a network of its own, by which no GPU sends to another.
        if links.kind[row] in kinds if kinds else links.kind[row] not in STORAGE_LINKS:
            graph.add_edge(
                str(links.src[row]), str(links.dst[row]), capacity=float(rate[row])
            )
    total = 0.0
    for senders, receivers in (
        (fabric.gpus[:half], fabric.gpus[half:]),
        (fabric.gpus[half:], fabric.gpus[:half]),
    ):
        way = graph.copy()
        way.add_edges_from((source, gpu) for gpu in senders)
        way.add_edges_from((gpu, sink) for gpu in receivers)
        total += float(nx.maximum_flow_value(way, source, sink))
    return total
