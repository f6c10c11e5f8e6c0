"""Numbers of a whole cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from prestep.sim.errors import InputError
from prestep.topologies.core.kinds import STORAGE_LINKS
from prestep.topologies.fabric import Fabric

if TYPE_CHECKING:
    import networkx as nx


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
    half = len(fabric.gpus) // 2
    if not half:
        raise InputError.of(fabric.name, "bisection", "1 GPU", "at least 2")
    graph = _capacities(fabric, kinds, wire)
    first, second = fabric.gpus[:half], fabric.gpus[half:]
    return _flow(graph, first, second) + _flow(graph, second, first)


def _capacities(
    fabric: Fabric, kinds: Collection[str], wire: bool
) -> nx.DiGraph[object]:
    """The links of some kinds (of all when empty) with their bytes/s."""
    import networkx as nx

    links = fabric.links
    rate = links.raw if wire else links.bandwidth
    graph: nx.DiGraph[object] = nx.DiGraph()
    for row, kind in enumerate(links.kind.tolist()):
        # Storage has a network of its own, by which no GPU sends to another.
        if kind in kinds if kinds else kind not in STORAGE_LINKS:
            ends = str(links.src[row]), str(links.dst[row])
            graph.add_edge(*ends, capacity=float(rate[row]))
    return graph


def _flow(
    graph: nx.DiGraph[object], senders: Sequence[str], receivers: Sequence[str]
) -> float:
    """The most bytes/s from all senders together to all receivers."""
    import networkx as nx

    # Objects, not names: no node of a cluster can be mistaken for them.
    source, sink = object(), object()
    flow = graph.copy()
    flow.add_edges_from((source, gpu) for gpu in senders)
    flow.add_edges_from((gpu, sink) for gpu in receivers)
    return float(nx.maximum_flow_value(flow, source, sink))
