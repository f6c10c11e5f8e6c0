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

from sim.collectives.algorithms import nvls, tree
from sim.collectives.group import Group, group_of
from sim.collectives.nccl import searched
from sim.collectives.nccl.graphs import SPLIT, TREE, Channels
from sim.collectives.nccl.search import search
from sim.collectives.nccl.system import TYPES
from sim.spec.sections import Nccl

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
    for chain in chains:
        for above, below in pairwise(chain):
            parent[below] = above
            children[above].append(below)
    edges = tree.binary_tree(group.nodes)
    if half:
        edges = tree.mirrored(edges, group.nodes)
    ports = [_ports(graphs[h].tree, chains[h]) for h in range(group.nodes)]
    for child, above in sorted(
        edges, key=lambda edge: (edge[1], _place(edge, group.nodes, half))
    ):
        hand = ports[above][_place((child, above), group.nodes, half)]
        parent[chains[child][0]] = hand
        children[hand].append(chains[child][0])
    return tuple(parent), tuple(map(tuple, children))


def _ports(found_: Channels, chain: list[int]) -> tuple[int, int]:
    """GPUs that talk to the first and to the second child among the hosts."""
    second = chain[1] if len(chain) > 1 else chain[0]
    return (
        chain[0] if found_.pattern == TREE else second,
        second if found_.pattern == SPLIT else chain[0],
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


def told(
    fabric: Any, ranks: Sequence[str], nccl: Nccl | None = None, trees: int = 8
) -> list[str]:
    """The lines of NCCL's log about a communicator, at most `trees` ranks of them."""
    wanted = nccl or Nccl()
    group = group_of(fabric, ranks, wanted)
    if group.n < 2:
        return []
    graphs, channels = (
        searched.every_host(group, fabric, wanted),
        _channels(group, fabric, wanted),
    )
    made = links(group, graphs, channels)
    sharp = graphs[0].nvls if nvls.missing(group, fabric, wanted) is None else None
    lines = [
        _pattern(g)
        for g in (graphs[0].ring, graphs[0].tree, sharp)
        if g is not None and g.count
    ]
    for c, ring in enumerate(made.rings):
        shown = " ".join(map(str, ring[:WIDE])) + (
            f" ... ({group.n} ranks)" if group.n > WIDE else ""
        )
        lines.append(f"Channel {c:02}/{channels:02} : {shown}")
    lines += [_trees(made, rank) for rank in range(min(trees, group.n))]
    return lines + ([f"... ({group.n} ranks)"] if group.n > trees else [])


def _channels(group: Group, fabric: Any, wanted: Nccl) -> int:
    return search(group, fabric.gpu_model, wanted, fabric).channels


def _pattern(graph: Channels) -> str:
    types = f"{TYPES[graph.type_inside]}/{TYPES[graph.type_between]}"
    return (
        f"Pattern {graph.pattern}, crossNic {graph.cross}, nChannels {graph.count}, bw {graph.inside:f}/"
        f"{graph.between:f}, type {types}, sameChannels {int(graph.same)}"
    )


def _trees(made: Links, rank: int) -> str:
    parts = []
    for c in range(len(made.parents)):
        below = (*made.children[c][rank], *(-1,) * ARITY)[:ARITY]
        parts.append(
            f"[{c}] {'/'.join(map(str, below))}->{rank}->{made.parents[c][rank]}"
        )
    return "Trees " + " ".join(parts)
