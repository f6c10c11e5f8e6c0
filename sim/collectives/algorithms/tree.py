"""Tree all-reduce: a chain of GPUs inside each host and two binary trees over the hosts.

Half of the data goes up and down each tree; a rank that is inner in one is a leaf in the other
(Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009;
NCCL src/graph/trees.cc). Reduction up and broadcast down run at once in one CTA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np

from prestep.sim.collectives.assemble import Call, Load, assemble
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import orders, protocols, rccl, search
from prestep.sim.collectives.nccl.outcome import TREE
from prestep.sim.collectives.nccl.tuning import TREE_NET, Model, Row, Rows
from prestep.sim.collectives.plan import PROTOS, Plan, changed
from prestep.sim.collectives.wires import paths
from prestep.sim.costs.gpu_files import generation_of
from prestep.topologies.core.links import groups

__all__ = ["OPS", "PROTOS"]
OPS = ("all_reduce",)
ORDER = 0
CONNECTIONS = 3  # over which a GPU receives on a channel: a parent and two children
ROWS = Rows(
    base=(6.8, 14.0, 8.4), nvlink=(0.6, 1.25, 4.0), pci=(1.0, 1.9, 4.0), net=TREE_NET
)
# Factor on the bandwidth by log2 of the size in units of 64 bytes.
FACTOR = {
    "LL": (1,) * 4
    + (0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    + (1,) * 4,
    "LL128": (1,) * 5
    + (0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9)
    + (1,) * 2,
    "Simple": (0.9,) * 7
    + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}


def plan(call: Call) -> Plan:
    """A chain in every host, and two trees over the hosts."""
    size, group, proto, fabric = call.size, call.group, call.proto, call.fabric
    count, threads = protocols.used(
        call.op, size, group.n, "tree", proto, call.channels
    )
    chains = orders.mesh_chains(group, fabric, call.settings)
    lines = rccl.chains(group, fabric)
    flows = paths.once(
        fabric, ("tree", group, chains), lambda: _load(fabric, group, chains, lines)
    )
    whole = work(size, group, proto, count, call.settings.buffer_size)
    task = changed(whole, fill=0.0) if group.network.cluster_facts.net_queue else whole
    if lines:  # no two share a link in one direction
        task = replace(task, local_bytes=task.local_bytes / len(lines))
    elif size > 0 and orders.has_meshes(group, fabric):
        task, call = orders.on_busiest_link(task, call, flows)
    plan = assemble(
        call,
        task,
        flows,
        algo="tree",
        channels=count,
        threads=threads,
        between=ROWS.between_hosts(proto),
    )
    return plan if group.nodes == 1 else _across_hosts(plan, call, whole)


def _load(fabric: Any, group: Group, chains: orders.Orders, lines: rccl.Orders) -> Load:
    """Links of all chains and trees, and data bytes on each; counted once for all fabrics with the same routes."""
    return paths.once_routed(
        fabric,
        ("tree", group.shape, group.net.nics, chains, lines),
        lambda: Load(*group.gather(fabric, *_flows(fabric, group, chains, lines))),
    )


def _across_hosts(plan: Plan, call: Call, task: protocols.Work) -> Plan:
    """The plan with waits of inner hosts, and no faster than NCCL's table has its channels, or than was measured."""
    group, model, fabric = call.group, call.fabric.gpu_model, call.fabric
    kind = generation_of(model)
    rows = kind.tree, kind.tree_reached
    # Elsewhere another GPU than the parent's takes the second child (NCCL's balanced trees).
    alone = search.search(group, model, call.settings, fabric).pattern == TREE
    most = max(believed(row, group, call.channels / 2) for row in rows) / 2
    filling = _filling(call, task, CONNECTIONS if alone else CONNECTIONS - 1)
    return changed(
        plan,
        latency=plan.latency + alone * waits(group, call.proto) + filling,
        rate_cap=min(plan.rate_cap, most),
    )


def depth(nodes: int) -> int:
    """Edges from the root of a binary tree over hosts to its deepest leaf."""
    return math.ceil(math.log2(nodes)) if nodes > 1 else 0


def waits(group: Group, proto: str) -> float:
    """Seconds that inner hosts of a tree add: one proxy takes from two children, and serves them, one by one.

    The root has one child, so the last of `depth` edges up and down passes depth - 1 hosts of two.
    """
    network = group.network
    each = network.posting(proto) or network.cluster_facts.net_message or 0.0
    return 2 * max(0, depth(group.nodes) - 1) * each


def _filling(call: Call, whole: protocols.Work, connections: int) -> float:
    """Seconds until all hosts are busy, where the file says for which share of the chunks in an inner host one waits.

    They lie in the slots of its connections, as many as there are chunks or slots.
    """
    group, proto = call.group, call.proto
    if not (queue := group.network.cluster_facts.net_queue) or whole.step <= 0:
        return 0.0
    pace = call.constants.pace("tree", proto)
    across = changed(whole, local_bytes=0.0)
    moving = protocols.link_time(across, group, call.op, proto, pace, call.constants)
    slots = min(1.0, connections * protocols.STEPS * whole.step / whole.traffic)
    inner = 2 * max(0, depth(group.nodes) - 1)
    return whole.fill / pace.fill + inner * queue * slots * moving


def believed(row: Row, group: Group, channels: float) -> float:
    """Bytes/s of bus bandwidth that a row of NCCL's tables gives `channels` channels of a tree across hosts.

    Its limits are the measured ones: 24 GB/s per channel and tree of three or more B200 hosts make 189 GB/s of bus
    bandwidth; Together AI measured 195 on 8 and 32 hosts, and 339 on two where the table makes 321.
    """
    return 1e9 * channels * row[min(group.nodes, 3) - 1]


def work(
    size: float, group: Group, proto: str, channels: int, buffer: float | None = None
) -> protocols.Work:
    """Hops, bytes per channel and link, and the filling of the pipeline, up and down."""
    share = size / channels
    inside, between = 2 * (group.largest - 1), 2 * depth(group.nodes)
    chunk = chunk_of(share, group, proto, buffer)
    fill = max(0, inside + between - 1) * chunk
    # An inner rank of a chain sends everything up and everything down; of two ranks each does one.
    local = size * min(2, group.largest - 1)
    remote = size * busiest(group.nodes) / max(1, group.net.nics)
    return protocols.Work(inside, between, chunk, share, local, remote, fill)


def chunk_of(
    share: float, group: Group, proto: str, buffer: float | None = None
) -> float:
    """Bytes per step of a channel that moves `share`: a FIFO slot, or less, so that deep trees fill (enqueue.cc)."""
    chunk = protocols.slot(proto, buffer)
    facts = group.network.cluster_facts
    if proto == "Simple" and group.nodes > 1 and (facts.net_queue or facts.tcp):
        # Depth as NCCL counts it. Where nothing says how long chunks wait, the filling of whole slots stands for that.
        hops = int(group.per_node) - 1 + int(math.log2(group.nodes))
        for times, least in ((8, 131_072), (4, 65_536), (1, 32_768)):
            while share // chunk < times * hops and chunk > least:
                chunk /= 2
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


def mirrored(
    tree: tuple[tuple[int, int], ...], nodes: int
) -> tuple[tuple[int, int], ...]:
    """The second tree: the mirror image of the first, or for odd counts shifted by one."""
    if nodes % 2 == 0:
        return tuple((nodes - 1 - child, nodes - 1 - parent) for child, parent in tree)
    return tuple(((child + 1) % nodes, (parent + 1) % nodes) for child, parent in tree)


@lru_cache(maxsize=64)
def busiest(nodes: int) -> float:
    """Bytes per payload byte that the busiest host sends over both trees: 0, 1 for two hosts, up to 2 for more."""
    if nodes < 2:
        return 0.0
    sent = [0.0] * nodes
    first = binary_tree(nodes)
    for tree in (first, mirrored(first, nodes)):
        for child, parent in tree:
            sent[child] += 0.5
            sent[parent] += 0.5
    return max(sent)


def _flows(
    fabric: Any, group: Group, searched: orders.Orders = (), lines: rccl.Orders = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both directions of every edge, for each rotation of the hosts' chains and each of the two trees.

    Returns positions of the two ends, and bytes per payload byte. `searched`: the chains of a single host, where
    NCCL's search had to find them. `lines`: a chain from each GPU of a host instead of one that is turned.
    """
    if searched:
        up, down = (
            fabric.positions(ends) for ends in zip(*_down(searched), strict=True)
        )
        both = np.concatenate([up, down]), np.concatenate([down, up])
        return *both, np.full(2 * len(up), 1 / len(searched))
    rotations = max(1, min(group.net.nics, group.smallest))
    trees = [np.array(tree, dtype=np.int64).reshape(-1, 2) for tree in _trees(group)]
    children, parents, each = [], [], []
    for k in range(rotations):
        heads, *chains = _chains(fabric, group, k, rotations, lines)
        between = [(heads[tree[:, 0]], heads[tree[:, 1]]) for tree in trees]
        for edges, share in ((chains, 1.0), (between, 1 / len(trees))):
            for child, parent in edges:
                children.append(child)
                parents.append(parent)
                each.append(np.full(len(child), share / rotations))
    ends = np.concatenate(children), np.concatenate(parents)
    return (
        np.concatenate(ends),
        np.concatenate(ends[::-1]),
        np.tile(np.concatenate(each), 2),
    )


def _chains(
    fabric: Any, group: Group, k: int, rotations: int, lines: rccl.Orders
) -> list[Any]:
    """The first GPU of every host's chain; then children and parents of all chains, by GPUs of a host."""
    sizes = np.array([len(host) for host in group.hosts])
    gpus = fabric.positions(list(chain.from_iterable(group.hosts)))
    begins = np.cumsum(sizes) - sizes
    heads, edges = np.empty(len(sizes), dtype=np.int64), []
    for size, which in groups(sizes):
        order = np.array(_turned(size, k, rotations, lines), dtype=np.int64)
        table = gpus[begins[which][:, None] + order]
        heads[which] = table[:, 0]
        edges.append((table[:, 1:].ravel(), table[:, :-1].ravel()))
    return [heads, *edges]


def _trees(group: Group) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The two trees over the hosts; one without edges for a single host."""
    nodes = group.nodes
    first = binary_tree(nodes)
    return (first, mirrored(first, nodes)) if nodes > 1 else ((),)


def _down(chains: Sequence[tuple[str, ...]]) -> list[tuple[str, str]]:
    """(child, parent) of all chains: each GPU after the first hangs on the one before it."""
    return [(child, parent) for chain in chains for parent, child in pairwise(chain)]


def turned(host: tuple[str, ...], k: int, rotations: int) -> tuple[str, ...]:
    """The host's GPUs from the one beside its NIC `k` of `rotations` on; NICs are spread evenly over the GPUs."""
    return tuple(host[at] for at in _turned(len(host), k, rotations))


def _turned(
    size: int, k: int, rotations: int, lines: rccl.Orders = ()
) -> tuple[int, ...]:
    """`turned`, of the places of so many GPUs."""
    start = k * size // rotations % size
    return lines[start] if lines else (*range(start, size), *range(start))


def estimate(op: str, proto: str, model: Model) -> tuple[float, float]:
    """Microseconds and GB/s of payload in NCCL's table, before the factor of the size."""
    nodes, count = model.group.nodes, model.graph.count
    bus = min(count * model.per_channel() * 0.92, count * model.kind.tree[model.column])
    if proto == "LL":
        bus = min(bus / 3.8, model.ll_max())
    elif proto == "LL128":
        bus = min(
            bus * (7 / 9 if nodes == 1 else 120 / 128),
            count * model.kind.tree_ll128[model.column],
        )
    if model.graph.pattern == TREE:
        bus *= 0.85
    own = rows(model.release)
    inside = (model.local - 1) * model.inside(own, proto)
    hops = inside + int(math.log2(nodes)) * model.between(own, proto)
    return model.base(own, proto) + 2 * hops, bus * 0.5


def rows(release: tuple[int, ...]) -> Rows:
    """The rows of a release: Simple cost nothing to begin before 2.23, and its steps over NVLink more since 2.21."""
    if release >= (2, 23):
        return ROWS
    free = replace(ROWS, base=(6.8, 14.0, 0.0))
    return replace(free, nvlink=(0.6, 1.25, 28.0)) if release >= (2, 21) else free


def corrected(op: str, size: float, proto: str, model: Model) -> tuple[float, float]:
    """Factors on latency and bandwidth: medium sizes get less out of a tree, since 2.29 those below 1 GiB too."""
    step = (int(size) >> 6).bit_length() - 1
    factors = FACTOR[proto]
    step -= step == len(factors) and model.release >= (2, 29)
    return 1.0, float(factors[step]) if 0 <= step < len(factors) else 1.0
