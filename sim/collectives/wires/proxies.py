"""What NCCL's proxy threads have to move, by algorithm; what that costs over TCP sockets is in `socket.py`.

Over RDMA a message takes a proxy a while too, whatever its size (`bounded`). A GPU's proxy thread posts what its
channels send, and what they are to receive, one message after the other (NCCL src/proxy.cc). Where a ring leaves a host
by another NIC than it enters, the GPU beside a NIC sends for one ring and receives for another, so its thread is busy
for all channels of a step. The last chunk of a ring over n ranks comes after n - 1 of them: with 2,160 ranks that
counts, and not the hops. Fact `net_post` of a cluster file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from prestep.sim.collectives import machine
from prestep.sim.collectives.algorithms import algorithms, tree
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import orders, protocols, search
from prestep.sim.collectives.plan import Plan, changed
from prestep.sim.collectives.settings import Nccl
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.collectives.nccl import searched

CHUNK_SLOTS = 4  # FIFO slots of a ring's Simple chunk, in two slices
LEAST = 2 / 32  # FIFO slots of the smallest slice: a thirty-second of the largest
SMALLEST = 16.0  # bytes of data of the smallest LL chunk


@dataclass(frozen=True)
class Traffic:
    """What the proxy threads have to move for one operation, per operation of a back-to-back sequence.

    Attributes
    ----------
    remote, local : float
        Hops between hosts and inside them that a rank waits for.
    rounds : float
        Rounds of messages that the busiest thread handles.
    data, empty : float
        Messages with data and without that it sends in a round.
    part : float
        Bytes of the largest message, flags included.
    amount : float
        Bytes it sends in a round, flags included.
    shared : bool
        Whether it receives as many in the same round.
    both : bool
        Whether it receives as many bytes over the whole operation, if not in the same round.
    loops : float
        Times that the ring goes round.
    slices : int
        Messages into which a channel's chunk is cut: while one is under way the next can be prepared.
    """

    remote: float
    local: float
    rounds: float
    data: float
    empty: float
    part: float
    amount: float
    shared: bool
    loops: float = 0.0
    slices: int = 1
    both: bool = False


def traffic_of(plan: Plan, group: Group, fabric: Any, settings: Nccl) -> Traffic | None:
    """What the sockets carry; None for what needs no socket, or an algorithm that sockets cannot run."""
    count = counter(plan.algo)
    if count is None or plan.size <= 0:
        return None
    edges = _edges(plan) if plan.algo == "pairwise" else []
    if edges and all(_host(group, a) == _host(group, b) for a, b in edges):
        return None
    return count(plan, group, fabric, settings)


def counter(algo: str) -> Callable[[Plan, Group, Any, Nccl], Traffic] | None:
    """What counts an algorithm's messages: NCCL's are here, another brings its own; None if it has none."""
    return TRAFFIC.get(algo) or getattr(algorithms().get(algo), "traffic", None)


def _ring(plan: Plan, group: Group, fabric: Any, settings: Nccl) -> Traffic:
    if plan.op in ("broadcast", "reduce"):
        return _chain(plan, group, fabric, settings)
    n, ways = group.n, _ways(group, settings)
    hops = (2 if plan.op == "all_reduce" else 1) * (n - 1)
    # Operations that follow each other start where a rank is ready: on average they see each kind of hop in turn.
    remote = hops * group.nodes / n
    slot = protocols.slot(plan.proto, settings.buffer_size)
    loop = _loop(plan.size / n / plan.channels, plan.proto, slot)
    rings_per_way = max(1.0, plan.channels / ways)
    return Traffic(
        remote * loop.times,
        (hops - remote) * loop.times,
        hops * loop.times,
        loop.data * rings_per_way,
        loop.empty * rings_per_way,
        loop.part,
        loop.amount * plan.channels / ways,
        _both_ways(group, fabric, settings),
        loop.times,
        loop.data,
    )


def _both_ways(group: Group, fabric: Any, settings: Nccl) -> bool:
    """Whether a rank receives for one ring while it sends for another."""
    few = group.smallest < 2 * _ways(group, settings)
    return few or _crossed(group, fabric, settings)


class _Loop(NamedTuple):
    """How a ring cuts a channel's share: times that it goes round, messages with data and without in each, bytes of
    the largest message and of all, flags included.
    """

    times: int
    data: int
    empty: int
    part: float
    amount: float


def _loop(share: float, proto: str, slot: float) -> _Loop:
    width = protocols.WIRE[proto]
    if proto != "Simple":
        share = max(share, SMALLEST)
        times = max(1, math.ceil(share / slot))
        return _Loop(times, 1, 0, width * share / times, width * share / times)
    times = max(1, math.ceil(share / (CHUNK_SLOTS * slot)))
    chunk = share / times
    data = 2 if chunk > LEAST * slot else 1
    part = min(chunk, max(chunk / 2, LEAST * slot))
    return _Loop(times, data, 2 - data, part, width * share / times)


def _ways(group: Group, settings: Nccl) -> int:
    """Rings that enter and leave a host at GPUs of their own: one for each NIC."""
    return max(1, min(group.net.nics, orders.turns(group)))


def _crossed(group: Group, fabric: Any, settings: Nccl) -> bool:
    """Whether rings leave a host by another NIC than they enter it: then the GPU beside a NIC sends for one ring and
    receives for another. Before 2.21 NCCL is taken to go a longer way to the same NIC instead: its rings over TCP are
    three times as fast on hosts where each NIC is near one GPU.
    """
    if settings.release < (2, 21) or search.switched(group, fabric):
        return False
    found = searched.by_size(group, fabric, settings).values()
    return any(graphs.ring.cross > 0 for graphs in found)


def _chain(plan: Plan, group: Group, fabric: Any, settings: Nccl) -> Traffic:
    """A broadcast or reduce: chunks of one slot relayed along the ring."""
    share, width = plan.size / plan.channels, protocols.WIRE[plan.proto]
    chunks = max(1, math.ceil(share / protocols.slot(plan.proto, settings.buffer_size)))
    part = width * share / chunks
    # The root runs ahead of the others, so operations in a row hide most of their hops, as inside a host.
    depth = machine.of(fabric).pace("ring", plan.proto).depth
    remote = group.nodes - 1
    shared = group.nodes > 2 and group.smallest == 1
    count = plan.channels / _ways(group, settings)
    local = group.n - 1 - remote
    return Traffic(
        depth * remote,
        depth * local,
        chunks,
        max(1.0, count),
        0.0,
        part,
        part * count,
        shared,
    )


def _tree(plan: Plan, group: Group, fabric: Any, settings: Nccl) -> Traffic:
    """Up and down; half of the channels on each of two trees, in which an inner host of one is a leaf of the other."""
    share, width = plan.size / plan.channels, protocols.WIRE[plan.proto]
    chunk = tree.chunk_of(share, group, plan.proto, settings.buffer_size)
    chunks = max(1, math.ceil(share / chunk))
    # Every NIC has a GPU that speaks to the network for its channels.
    ways = max(1, min(group.net.nics, group.smallest))
    count = max(1.0, plan.channels / 2 / ways)
    remote = 2 * int(math.log2(group.nodes))
    local = 2 * (group.largest - 1) if plan.algo == "tree" else 0
    # Hosts send as many messages as the trees send them bytes; what one hop waits for is one direction.
    rounds = chunks * 2 * tree.busiest(group.nodes)
    return Traffic(
        remote,
        local,
        rounds,
        count,
        0.0,
        width * chunk,
        width * chunk * count,
        False,
        both=True,
    )


def _pat(plan: Plan, group: Group, fabric: Any, settings: Nccl) -> Traffic:
    steps = math.ceil(math.log2(group.n))
    amount = plan.size * (group.n - 1) / group.n / steps
    slot = protocols.slot(plan.proto, settings.buffer_size)
    data = max(plan.channels, math.ceil(amount / slot))
    return Traffic(steps, 0.0, steps, data, 0.0, amount / data, amount, True)


def _host(group: Group, gpu: str) -> int:
    return next(number for number, host in enumerate(group.hosts) if gpu in host)


def _edges(plan: Plan) -> list[tuple[str, str]]:
    """Pairs of ranks between which a message goes; of an all-to-all, gather or scatter one that stands for all."""
    ranks = plan.ranks
    if plan.op == "sendrecv":
        return list(zip(ranks, ranks[1:] + ranks[:1], strict=True))
    return [(ranks[0], ranks[1 if plan.op in ("send", "recv") else -1])]


def _pairs(plan: Plan, group: Group, fabric: Any, settings: Nccl) -> Traffic:
    n, op, buffer = group.n, plan.op, settings.buffer_size
    per_host = group.smallest
    many = op in ("all_to_all", "gather", "scatter")
    message = plan.size / n if many else plan.size
    graph = search.search(group, fabric.gpu_model, settings)
    parts = protocols.message_channels(message, n, graph, group.nodes, buffer)
    chunks = max(1, math.ceil(message / parts / _largest_chunk(buffer)))
    part = message / parts / chunks
    peers = n - per_host if many else 1
    remote = _waited(plan, group) if op == "sendrecv" else 1.0
    shared = op == "all_to_all" or (op == "sendrecv" and per_host == 1)
    amount = part * peers * parts
    return Traffic(remote, 0.0, chunks, peers * parts, 0.0, part, amount, shared)


def _largest_chunk(buffer: float | None) -> float:
    """Bytes of a message that one step over the network carries at most."""
    return min(float(protocols.P2P_CHUNK["network"]), protocols.slot("Simple", buffer))


def _waited(plan: Plan, group: Group) -> float:
    """Hops between hosts that a rank waits for in a shift round the ring.

    Ranks whose partners are near run ahead, so that not every time a hop is waited for; how far they can is not known
    beyond two GPUs a host (guess).
    """
    far = [_host(group, a) != _host(group, b) for a, b in _edges(plan)]
    return max(0.5, sum(far) / len(far))


TRAFFIC: dict[str, Callable[[Plan, Group, Any, Nccl], Traffic]] = {
    "ring": _ring,
    "tree": _tree,
    "nvls_tree": _tree,
    "pat": _pat,
    "pairwise": _pairs,
}


def bounded(plan: Plan, group: Group, fabric: Any, settings: Nccl) -> Plan:
    """The plan, no faster than the busiest proxy posts its messages."""
    if plan.algo != "ring" or group.nodes < 2:
        return plan
    traffic = traffic_of(plan, group, fabric, settings)
    if traffic is None:
        return plan
    each = _each_round(traffic, plan, group)
    if not each:
        return plan
    hop = (
        protocols.net_hop(protocols.ring_step(plan.proto), plan.proto, group)
        + group.remote_latency
    )
    start = machine.of(fabric).pace("ring", plan.proto).start
    least = start + min(2.0, traffic.remote) * hop + traffic.rounds * each
    # As a bound on the rate and not as latency: messages are posted while others' bytes move, so a collective that
    # shares its links, and takes longer for that, waits no longer for its proxies.
    if not plan.size or least <= plan.duration(fabric.links.bandwidth):
        return plan
    posting = least - plan.latency
    return changed(plan, rate_cap=min(plan.rate_cap, plan.size / posting))


def _each_round(traffic: Traffic, plan: Plan, group: Group) -> float:
    """Seconds that a round's messages keep the proxy busy: what it posts or, if longer, what it copies."""
    # With one channel a GPU sends or receives; of several it has its share of those that enter and of those that leave.
    messages = traffic.data * (2 if plan.channels > 1 else 1)
    network = group.network
    copied = traffic.data * network.copied(plan.proto, traffic.part)
    agreed = network.agreed(plan.proto, traffic.part, plan.channels)
    return max(messages * network.posting(plan.proto), copied + agreed)
