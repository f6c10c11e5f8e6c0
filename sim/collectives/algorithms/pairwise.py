"""Messages between pairs: send, receive, ring shifts, all-to-all, gather and scatter.

NCCL cuts a message in parts, one per channel, and gives each round of partners its own channels;
a CTA that carries parts of several messages shares its threads among them (src/enqueue.cc, device/sendrecv.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.collectives import constants as files
from sim.collectives import machine
from sim.collectives.assemble import Bytes, wires
from sim.collectives.group import Group, group_of
from sim.collectives.nccl import channels as rules
from sim.collectives.nccl.protocols import (
    aligned,
    joined,
    net_hop,
    ring_step,
    sharpness,
)
from sim.collectives.nccl.search import NET_PER_CHANNEL
from sim.collectives.plan import PAIR_OPS, Plan, Send
from sim.collectives.wires import paths, transport
from sim.spec.sections import Nccl

OPS = PAIR_OPS
# Above so many ranks an all-to-all is counted by classes of pairs.
MANY_RANKS = 64
# Slots of a channel's buffer before the network, and bytes in each (NCCL_STEPS, NCCL_P2P_NET_CHUNKSIZE; src/init.cc).
SLOTS, NET_CHUNK = 8, 1 << 17
MANY = ("all_to_all", "gather", "scatter")


def plan(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Nccl | None = None,
    proto: str | None = None,
    channels: int | None = None,
    table: files.Constants | None = None,
) -> Plan:
    """Messages of `size` bytes (all-to-all, gather, scatter: `size` / n each); `send` goes from ranks[0] to ranks[1].

    The root of a gather or scatter is ranks[0].

    Further ranks of a send belong to its communicator: they are idle, but NCCL gives fewer channels to each pair.
    """
    wanted = nccl or Nccl()
    group = group_of(fabric, ranks, wanted)
    table = table or machine.of(fabric)
    graph = rules.search(group, fabric.gpu_model, wanted, fabric)
    message = size / group.n if op in MANY else size
    parts = rules.message_channels(
        message, group.n, graph, group.nodes, wanted.buffer_size
    )
    load = _load(op, message, group, graph, parts, table.pairs.self_copy)
    slow = _slower(op, message, group, graph, parts, wanted)
    ends = () if op == "all_to_all" else tuple(ranks)
    key = ("pairwise", op, group, ends, wanted.pxn_disable)
    links, data = paths.once(
        fabric, key, lambda: _bytes(op, fabric, group, ranks, not wanted.pxn_disable)
    )
    usage = data / wires(
        links, fabric, lambda kind: group.network.wire(table, kind, pairs=True)
    )
    moving = _transfer(
        op, size, load, message / parts, links, data, fabric, table, group, slow
    )
    count = int(np.count_nonzero(load))
    delay = _latency(group, count, table) + group.network.message * parts * _posted(
        op, group
    )
    small = message <= parts * rules.P2P_LL_BYTES and group.nodes == 1
    evidence = table.evidence if group.nodes == 1 else "guess"
    rate = size / moving if moving > 0 else float("inf")
    away = op == "send" and fabric.host_of(ranks[0]) != fabric.host_of(ranks[1])
    return Plan(
        op,
        size,
        tuple(ranks),
        "pairwise",
        "LL" if small else "Simple",
        count,
        delay,
        links,
        usage,
        rate,
        evidence,
        buffered=min(size, float(parts * SLOTS * NET_CHUNK)) if away else 0.0,
    )


def _load(
    op: str,
    message: float,
    group: Group,
    graph: rules.Graph,
    parts: int,
    self_copy: float,
    begin: int = 0,
) -> np.ndarray:
    """Bytes each CTA of one GPU moves from round `begin` on."""
    load = np.zeros(graph.p2p)
    rounds = (
        [(r, 1.0 if r else self_copy) for r in range(begin, group.n)]
        if op in MANY
        else [(1, 1.0)]
    )
    if op in MANY and group.n == 1:
        return load
    # Beyond the channels' number rounds share CTAs evenly: no need to walk through thousands of them.
    for round_, weight in rounds[: 4 * graph.p2p]:
        first = rules.first_channel(round_, graph.p2p)
        for part in range(parts):
            load[(first + part) % graph.p2p] += weight * message / parts
    if len(rounds) > 4 * graph.p2p:
        load *= len(rounds) / (4 * graph.p2p)
    return load


def _transfer(
    op: str,
    size: float,
    load: np.ndarray,
    part: float,
    links: np.ndarray,
    data: np.ndarray,
    fabric: Any,
    table: files.Constants,
    group: Group,
    slow: float,
) -> float:
    """Seconds of moving the bytes through the fullest CTA and the fullest link."""
    if size <= 0 or not len(links):
        return 0.0
    pairs, way = table.pairs, "sendrecv" if op in ("sendrecv", "all_to_all") else "send"
    channel = float(load.max()) / pairs.rate[way]
    if op in MANY and not aligned(size, group.n):
        channel *= pairs.unaligned
    # Where the file says what a channel carries over the network, a single message goes by that and not by NVLink.
    channel = (
        slow
        if group.network.channel and op not in MANY and slow
        else max(channel, slow)
    )
    wire = wires(
        links, fabric, lambda kind: group.network.wire(table, kind, pairs=True)
    )
    link = (
        float(np.max(size * data / (fabric.links.bandwidth[links] * wire)))
        / pairs.link[way]
    )
    if group.nodes == 1:
        link *= 1 + (pairs.ramp[way] / size) ** pairs.power
    beyond = part / (part + pairs.grain)
    return beyond * joined(channel, link, sharpness(pairs.sharp, pairs.settle, size))


def _latency(group: Group, channels: int, table: files.Constants) -> float:
    pairs, nominal = table.pairs, float(table.tables["nominal"]["latency"])
    delay = pairs.start + pairs.channel * max(0, channels - 1)
    if group.nodes > 1:
        return (
            delay + net_hop(ring_step("Simple"), "Simple", group) + group.remote_latency
        )
    return delay + max(0.0, group.local_latency - nominal)


def _bytes(
    op: str, fabric: Any, group: Group, ranks: Sequence[str], relay: bool
) -> Bytes:
    """Links, and bytes on each per payload byte; `relay` by PXN where NCCL does."""
    if op == "all_to_all" and group.n > MANY_RANKS and group.inside == group.outside:
        return paths.used(_exchanged(fabric, group, relay and transport.relays(group)))
    flows = _flows(op, group, ranks)
    if relay:
        flows = transport.relayed(flows, group)
    return paths.gather(fabric, group.expand(fabric, flows))


def _exchanged(fabric: Any, group: Group, relay: bool) -> np.ndarray:
    """Bytes of an all-to-all on every link: the sum of `_flows`, relayed or not."""
    gpus = fabric.positions(group.ranks)
    if not relay:
        return np.asarray(fabric.exchange(gpus, gpus, 1 / group.n))
    place = gpus.reshape(group.nodes, -1)
    # Inside a host each GPU hands every other its message and those for that one's rail in all other hosts.
    near = [(a, b) for a in place.T for b in place.T if a[0] != b[0]]
    total = sum(
        fabric.loads(a, b, np.full(len(a), group.nodes / group.n)) for a, b in near
    )
    return np.asarray(
        total
        + sum(fabric.exchange(rail, rail, group.per_node / group.n) for rail in place.T)
    )


def _posted(op: str, group: Group) -> int:
    """Messages to other hosts that the busiest rank's proxy posts."""
    if group.nodes < 2:
        return 0
    return group.n - min(len(host) for host in group.hosts) if op in MANY else 1


def _slower(
    op: str, message: float, group: Group, graph: rules.Graph, parts: int, wanted: Nccl
) -> float:
    """Seconds of the fullest channel over the network, where one carries less than inside a host.

    What it carries is the cluster file's to say; since 2.29 NCCL itself counts on 14 GB/s, as is found there.
    """
    rate = group.network.channel or (
        NET_PER_CHANNEL * 1e9 if wanted.release >= (2, 29) else 0.0
    )
    if group.nodes < 2 or not rate:
        return 0.0
    # Rounds begin with the ranks of the own host (src/enqueue.cc): what remains goes over the network.
    near = min(len(host) for host in group.hosts) if op in MANY else 1
    away = _load(op, message, group, graph, parts, 0.0, near)
    return float(away.max()) / rate


def _flows(op: str, group: Group, ranks: Sequence[str]) -> list[tuple[str, str, float]]:
    if op == "send":
        return [(ranks[0], ranks[1], 1.0)]
    if op == "recv":
        return [(ranks[1], ranks[0], 1.0)]
    if op == "sendrecv":
        following = (*ranks[1:], ranks[0])
        return [(a, b, 1.0) for a, b in zip(ranks, following, strict=True) if a != b]
    if op == "gather":
        return [(rank, ranks[0], 1 / group.n) for rank in ranks[1:]]
    if op == "scatter":
        return [(ranks[0], rank, 1 / group.n) for rank in ranks[1:]]
    return [(a, b, 1 / group.n) for a in group.ranks for b in group.ranks if a != b]


def steps(op: str, n: int) -> list[list[Send]]:
    """Rounds of transfers; in an all-to-all rank r's chunk for rank q is number r * n + q."""
    if op == "send":
        return [[Send(0, 1, 0, False)]]
    if op == "recv":
        return [[Send(1, 0, 0, False)]]
    if op == "sendrecv":
        return [[Send(r, (r + 1) % n, r, False) for r in range(n)]]
    if op == "gather":
        return [[Send(r, 0, r, False)] for r in range(1, n)]
    if op == "scatter":
        return [[Send(0, r, r, False)] for r in range(1, n)]
    return [
        [Send(r, (r + k) % n, r * n + (r + k) % n, False) for r in range(n)]
        for k in range(1, n)
    ]


def runs_on(op: str, group: Group, fabric: Any, wanted: Nccl) -> str | None:
    """None: messages go everywhere."""
    return None
