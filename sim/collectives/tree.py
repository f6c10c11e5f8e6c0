"""Tree all-reduce: a chain of GPUs inside each host and two binary trees over the hosts.

Half of the data goes up and down each tree; a rank that is inner in one is a leaf in the other
(Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009;
NCCL src/graph/trees.cc). Reduction up and broadcast down run at once in one CTA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sim.collectives import channels as rules
from sim.collectives import protocols
from sim.collectives.assemble import assemble
from sim.collectives.constants import Constants
from sim.collectives.group import Group, group_of
from sim.collectives.plan import Plan, Send

OPS = ("all_reduce",)


def plan(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Any = None,
    proto: str = "Simple",
    channels: int = 24,
    table: Constants | None = None,
) -> Plan:
    """Trees over `ranks` with at most `channels` channels."""
    group = group_of(fabric, ranks)
    count, threads = rules.used(op, size, group.n, "tree", proto, channels)
    return assemble(
        op, size, group, fabric, work(size, group, proto, count), _flows(group),
        algo="tree", proto=proto, channels=count, threads=threads, table=table,
    )  # fmt: skip


def work(size: float, group: Group, proto: str, channels: int) -> protocols.Work:
    """Hops, bytes per channel and link, and the filling of the pipeline, up and down."""
    share = size / channels
    longest = max(len(host) for host in group.hosts)
    inside, between = 2 * (longest - 1), 2 * int(math.log2(group.nodes))
    chunk = chunk_of(share, group, proto)
    fill = max(0, inside + between - 1) * chunk
    # An inner rank of a chain sends everything up and everything down; of two ranks each does one.
    local = size * min(2, longest - 1)
    remote = size * 2 / min(len(host) for host in group.hosts) * (group.nodes > 1)
    return protocols.Work(inside, between, chunk, share, local, remote, fill)


def chunk_of(share: float, group: Group, proto: str) -> float:
    """Bytes per step of a channel that moves `share`: a FIFO slot, smaller for LL128 (enqueue.cc)."""
    chunk = float(protocols.SLOT[proto])
    if proto == "LL128":
        depth = 1 + int(math.log2(group.nodes)) + 0.1 * group.per_node
        while share / chunk < 64 * depth / group.per_node and chunk > 131_072:
            chunk /= 2
        while share / chunk < 16 * depth / group.per_node and chunk > 32_768:
            chunk /= 2
    return min(share, chunk)


def binary_tree(nodes: int) -> tuple[tuple[int, int], ...]:
    """(child, parent) of NCCL's first tree, rooted at 0: nodes with odd numbers are leaves."""
    pairs = []
    for node in range(1, nodes):
        bit = node & -node
        parent = (node ^ bit) | (bit << 1)
        pairs.append((node, parent if parent < nodes else node ^ bit))
    return tuple(pairs)


def mirrored(tree: tuple[tuple[int, int], ...], nodes: int) -> tuple[tuple[int, int], ...]:
    """The second tree: the mirror image of the first, or for odd counts shifted by one."""
    if nodes % 2 == 0:
        return tuple((nodes - 1 - child, nodes - 1 - parent) for child, parent in tree)
    return tuple(((child + 1) % nodes, (parent + 1) % nodes) for child, parent in tree)


def _flows(group: Group) -> list[tuple[str, str, float]]:
    """Both directions of every edge, for each rotation of the hosts' chains and each of the two trees."""
    rotations = max(len(host) for host in group.hosts) if group.nodes > 1 else 1
    first = binary_tree(group.nodes)
    trees = (first, mirrored(first, group.nodes)) if group.nodes > 1 else ((),)
    flows: list[tuple[str, str, float]] = []
    for k in range(rotations):
        chains = [host[k % len(host) :] + host[: k % len(host)] for host in group.hosts]
        edges = [(chain[i + 1], chain[i], 1 / rotations) for chain in chains for i in range(len(chain) - 1)]
        share = 1 / rotations / len(trees)
        edges += [(chains[child][0], chains[parent][0], share) for tree in trees for child, parent in tree]
        flows += edges + [(b, a, amount) for a, b, amount in edges]
    return flows


def steps(op: str, n: int) -> list[list[Send]]:
    """Rounds over hosts 0..n-1 with one GPU each: chunk 0 on the first tree, chunk 1 on the second."""
    first = binary_tree(n)
    rounds: list[list[Send]] = []
    for chunk, tree in enumerate((first, mirrored(first, n))):
        level = _levels(tree)
        for depth in range(max(level.values(), default=0), 0, -1):
            rounds.append([Send(c, p, chunk, True) for c, p in tree if level[c] == depth])
        for depth in range(1, max(level.values(), default=0) + 1):
            rounds.append([Send(p, c, chunk, False) for c, p in tree if level[c] == depth])
    return rounds


def _levels(tree: tuple[tuple[int, int], ...]) -> dict[int, int]:
    parent = dict(tree)
    level = {}
    for child in parent:
        node, depth = child, 0
        while node in parent:
            node, depth = parent[node], depth + 1
        level[child] = depth
    return level
