"""Rings and trees of a communicator, rank by rank, as NCCL's log prints them.

`Channel 00/24 : 0 1 2 3` is a ring in its order; `Trees [0] 1/-1/-1->0->-1` says for a rank and every channel its
children, itself and its parent (-1: none). Rules: src/graph/connect.cc and trees.cc. Hosts are strung on rings by
number; where channels come in pairs that swap nets, every other host swaps the pair, so that both ends of a wire are
one rail; with an odd number of hosts the last wire joins two rails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prestep.sim.collectives.algorithms import nvls, tree
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.nccl import searched
from prestep.sim.collectives.nccl.graphs import SPLIT, TREE, Channels
from prestep.sim.collectives.nccl.search import search
from prestep.sim.collectives.nccl.ways import TYPES
from prestep.sim.collectives.settings import Nccl

ARITY = 3
WIDE = 64  # ranks of a ring that are printed


@dataclass(frozen=True)
class Links:
    """Of every channel: the ring as ranks in order, and for every rank its parent (-1: none) and its children."""

    rings: tuple[tuple[int, ...], ...]
    parents: tuple[tuple[int, ...], ...]
    children: tuple[tuple[tuple[int, ...], ...], ...]


def links(group: Group, graphs: Sequence[searched.Graphs], channels: int) -> Links:
    """Connects the hosts' channels: `graphs` has what the search found on each host."""
    count = min(min(g.ring.count, g.tree.count) for g in graphs)
    first = [sum(len(host) for host in group.hosts[:h]) for h in range(group.nodes)]
    rings = [_ring(group, graphs, c, first, count) for c in range(count)]
    trees = [
        _tree(group, graphs, c, first, half) for half in (0, 1) for c in range(count)
    ]
    # Twice as many channels as were found: the rings again, the trees with the second tree over the hosts.
    rings, total = rings * 2, 2 * count
    pick = [c % total for c in range(channels)]
    return Links(
        tuple(rings[c] for c in pick),
        tuple(trees[c][0] for c in pick),
        tuple(trees[c][1] for c in pick),
    )


def _ring(
    group: Group,
    graphs: Sequence[searched.Graphs],
    c: int,
    first: list[int],
    count: int,
) -> tuple[int, ...]:
    order: list[int] = []
    for h in range(group.nodes):
        ring = graphs[h].ring
        swapped = ring.cross == 2 and count % 2 == 0 and h % 2 == 1
        order += [first[h] + gpu for gpu in ring.orders[c ^ 1 if swapped else c]]
    at = order.index(0)
    return tuple(order[at:] + order[:at])


def _tree(
    group: Group, graphs: Sequence[searched.Graphs], c: int, first: list[int], half: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Parent and children of every rank: a chain in each host, a binary tree over the hosts."""
    parent = [-1] * group.n
    children: list[list[int]] = [[] for _ in range(group.n)]
    chains = [
        [first[h] + gpu for gpu in graphs[h].tree.orders[c]] for h in range(group.nodes)
    ]
    edges = [edge for chain in chains for edge in pairwise(chain)]
    edges += _between_hosts(chains, graphs, half)
    for above, below in edges:
        parent[below] = above
        children[above].append(below)
    return tuple(parent), tuple(map(tuple, children))


def _between_hosts(
    chains: list[list[int]], graphs: Sequence[searched.Graphs], half: int
) -> list[tuple[int, int]]:
    """Ranks (above, below) on the edges of the binary tree over the hosts, the first child of a host first."""
    nodes = len(chains)
    edges = tree.binary_tree(nodes)
    if half:
        edges = tree.mirrored(edges, nodes)
    places = {edge: _place(edge, nodes, half) for edge in edges}
    ranks = []
    for edge in sorted(edges, key=lambda edge: (edge[1], places[edge])):
        child, above = edge
        port = _ports(graphs[above].tree, chains[above])[places[edge]]
        ranks.append((port, chains[child][0]))
    return ranks


def _ports(graph: Channels, chain: list[int]) -> tuple[int, int]:
    """GPUs that talk to the first and to the second child among the hosts."""
    second = chain[1] if len(chain) > 1 else chain[0]
    return (
        chain[0] if graph.pattern == TREE else second,
        second if graph.pattern == SPLIT else chain[0],
    )


def _place(edge: tuple[int, int], nodes: int, half: int) -> int:
    """0 for a host's first child in the tree, 1 for its second: first is the one with the smaller number."""
    child, above = edge
    if half and nodes % 2 == 0:
        child, above = nodes - 1 - child, nodes - 1 - above
    elif half:
        child, above = (child - 1) % nodes, (above - 1) % nodes
    # The root has one child, and hangs it on the second place.
    return int(child > above)


def printed(
    fabric: Any, ranks: Sequence[str], nccl: Nccl | None = None, trees: int = 8
) -> list[str]:
    """The lines of NCCL's log about a communicator, at most `trees` ranks of them."""
    settings = nccl or Nccl()
    group = group_of(fabric, ranks, settings)
    if group.n < 2:
        return []
    graphs = searched.every_host(group, fabric, settings)
    channels = search(group, fabric.gpu_model, settings, fabric).channels
    connected = links(group, graphs, channels)
    sharp = nvls.missing(group, fabric, settings) is None
    rings = [
        f"Channel {c:02}/{channels:02} : {_ranks(ring)}"
        for c, ring in enumerate(connected.rings)
    ]
    shown = [_trees(connected, rank) for rank in range(min(trees, group.n))]
    rest = [f"... ({group.n} ranks)"] if group.n > trees else []
    return _patterns(graphs[0], sharp) + rings + shown + rest


def _patterns(graphs: searched.Graphs, sharp: bool) -> list[str]:
    """What the search found on a host; for NVLink SHARP only where it can run."""
    searches = (graphs.ring, graphs.tree, graphs.nvls if sharp else None)
    return [_pattern(one) for one in searches if one is not None and one.count]


def _ranks(ring: tuple[int, ...]) -> str:
    """Ranks of a ring in their order, the first of many."""
    more = f" ... ({len(ring)} ranks)" if len(ring) > WIDE else ""
    return " ".join(map(str, ring[:WIDE])) + more


def _pattern(graph: Channels) -> str:
    types = f"{TYPES[graph.type_inside]}/{TYPES[graph.type_between]}"
    return (
        f"Pattern {graph.pattern}, crossNic {graph.cross}, nChannels {graph.count}, bw {graph.inside:f}/"
        f"{graph.between:f}, type {types}, sameChannels {int(graph.same)}"
    )


def _trees(connected: Links, rank: int) -> str:
    """A rank's children, itself and its parent on every channel."""
    parts = []
    for c, parents in enumerate(connected.parents):
        below = (*connected.children[c][rank], *(-1,) * ARITY)[:ARITY]
        parts.append(f"[{c}] {'/'.join(map(str, below))}->{rank}->{parents[rank]}")
    return "Trees " + " ".join(parts)
