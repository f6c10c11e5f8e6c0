"""Channels that NCCL's search finds on a fabric, and how fast it believes each to be.

Rules of NCCL 2.28: src/graph/search.cc (speeds, duplication, second pass), connect.cc (channels of a communicator),
paths.cc (send and receive). With all GPUs of a host on NVSwitches, or one GPU per host, the outcome of the search
follows from bandwidths alone (a test holds it against the search); elsewhere (PCIe, NVLink without switches, host
memory, part of a host) it is searched edge by edge: `prestep.sim.collectives.nccl.graphs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl.outcome import STEPS_SAME, Channels
from prestep.sim.collectives.nccl.ways import NVB, NVL, PXB, PXN
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths
from prestep.sim.collectives.wires.nics import PCIE
from prestep.sim.collectives.wires.transport import between
from prestep.sim.costs.generation import Generation
from prestep.sim.costs.gpu_files import generation_of
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.collectives.nccl import searched

__all__ = ["Graph", "power_of_two", "search"]

MAX_GRAPH_CHANNELS = 32
#: Compute capability from which NCCL treats GPUs as it does Hopper.
HOPPER = 90
MAX_HEADS = 32
# GB/s of a NIC that one channel of messages is meant for, since 2.29.
NET_PER_CHANNEL = 14.0


@dataclass(frozen=True)
class Graph:
    """The outcome of the search.

    Attributes
    ----------
    count : int
        Channels before NCCL doubles them.
    ring, tree, inter : float
        GB/s of a ring's channel and of a tree's inside a host, and of either between hosts.
    channels, p2p, per_peer : int
        Channels of collectives, of messages, and of one message.
    pattern : int
        NCCL's pattern of the tree: 1 (network on the first two GPUs of a host) or 3 (on the first).
    same : bool
        All channels visit the GPUs in one order.
    heads, nvls, nvls_inter, nvls_channels
        NVLink SHARP: slices of the data, GB/s of each inside and between hosts, and CTAs.
    nvlink, ll128 : bool
        Whether NVLink joins the GPUs of a host; whether NCCL trusts the ways with LL128.
    """

    count: int
    ring: float
    tree: float
    inter: float
    channels: int
    p2p: int
    per_peer: int
    pattern: int = 1
    same: bool = True
    heads: int = 0
    nvls: float = 0.0
    nvls_inter: float = 0.0
    nvls_channels: int = 0
    nvlink: bool = True
    ll128: bool = True


def search(group: Group, gpu: str, settings: Nccl, fabric: Any = None) -> Graph:
    """Channels of a communicator: NCCL goes by the wires, not by what a copy gets out of them.

    Without the `fabric` hosts without NVSwitches are taken for hosts with them.
    """
    if fabric is None:
        return _switched(group, generation_of(gpu).at(settings.release), settings, None)
    key = ("search", group, gpu, unforced(settings))
    return paths.once(fabric, key, lambda: _search(group, gpu, settings, fabric))


@lru_cache(maxsize=256)
def unforced(settings: Nccl) -> Nccl:
    """The settings without a forced algorithm and protocol: the search looks at neither."""
    return replace(settings, algo=None, proto=None)


def _search(group: Group, gpu: str, settings: Nccl, fabric: Any) -> Graph:
    """`search` on a fabric."""
    if not switched(group, fabric):
        return _searched(group, fabric, settings)
    return _switched(group, generation_of(gpu).at(settings.release), settings, fabric)


def _switched(group: Group, kind: Generation, settings: Nccl, fabric: Any) -> Graph:
    """`search` where bandwidths alone decide."""
    nvlink = "nvlink" in group.local_kind
    share = kind.nvlink_share if nvlink else PCIE
    inside = _believed(group, share)
    if group.nodes > 1:
        count, ring, tree, inter = _across(group, kind, inside)
    else:
        count, ring, tree, inter = _alone(group, kind, inside)
    channels = _channels(group, kind, count, ring, settings)
    p2p, per_peer = _messages(group, settings, channels)
    graph = Graph(
        count,
        ring,
        tree,
        inter,
        channels,
        p2p,
        per_peer,
        pattern=1 if group.nodes == 1 or _balanced(group, kind, fabric) else 3,
        same=_equal_channels(group, count),
        nvlink=nvlink,
        ll128=(nvlink or group.per_node == 1) and group.net.trusted(settings.release),
    )
    return _with_multicast(graph, group, kind, inside, settings)


def _equal_channels(group: Group, count: int) -> bool:
    """Whether all channels visit the GPUs in one order: not in a rack, where NCCL's budget for that ends too early."""
    if group.nodes == 1:
        # Half of the channels are found, a step for every GPU and one to close the ring; then they are doubled.
        return count // 2 * (group.n + 1) <= STEPS_SAME
    return group.net.nics == 1 or group.per_node == 1


def _believed(group: Group, share: float) -> float:
    """GB/s of a GPU's links, of whose wire NCCL counts on a share; a GPU alone has its own memory."""
    wire = group.local_wire
    return wire * share / 1e9 if wire < float("inf") else 5000.0


def _channels(
    group: Group, kind: Generation, count: int, ring: float, settings: Nccl
) -> int:
    """Channels of collectives: twice those found, and four times where fast ones are few (connect.cc)."""
    channels = 2 * count
    recent = kind.capability >= HOPPER
    if group.nodes > 1 and recent and ring > 45 and channels < 16:
        channels *= 2
    return _limited(settings, channels)


def switched(group: Group, fabric: Any) -> bool:
    """Whether bandwidths alone decide: as many GPUs on every host, and they meet in NVSwitches, or there is one.

    Three or four GPUs of one host have room for faster trees, which NCCL finds by trying other orders of the GPUs.
    """
    host = group.first_of_size[group.largest]
    if len(host) < 2:
        return True
    if group.smallest < len(host) or group.n == len(host) in (3, 4):
        return False
    links, _ = between(fabric, host[0], host[1], group.inside)
    return any(
        fabric.nodes.kinds[fabric.node_index(fabric.links.dst[i])] == "nvswitch"
        for i in links
    )


def _searched(group: Group, fabric: Any, settings: Nccl) -> Graph:
    """`search`, edge by edge; of every figure the least that some host finds (init.cc)."""
    kind = generation_of(fabric.gpu_model).at(settings.release)
    graphs = [*searched.by_size(group, fabric, settings).values()]
    ring = _slowest([g.ring for g in graphs])
    tree = _slowest([g.tree for g in graphs])
    count = min(ring.count, tree.count)
    channels = _channels(group, kind, count, ring.inside, settings)
    p2p, per_peer = _messages(group, settings, channels)
    # Without NVLink a message has two channels at most, and LL128 is not trusted.
    near = ring.type_inside <= NVB
    near_nics = group.nodes == 1 or ring.type_between <= _trusted(kind, settings)
    graph = Graph(
        count,
        ring.inside,
        tree.inside,
        ring.between,
        channels,
        p2p,
        per_peer if near else min(per_peer, 2),
        pattern=tree.pattern,
        same=ring.same,
        nvlink=ring.type_inside == NVL,
        ll128=near and near_nics,
    )
    if graphs[0].nvls is None:
        return graph
    return _with_multicast(graph, group, kind, _nvlink(group, kind, settings), settings)


def _nvlink(group: Group, kind: Generation, settings: Nccl) -> float:
    """GB/s of a GPU's NVLinks that NCCL counts on."""
    return group.local_wire * kind.nvlink_share / 1e9


def _trusted(kind: Generation, settings: Nccl) -> int:
    """The farthest way to a NIC over which LL128 is safe: since NCCL 2.27 over C2C or a neighbour too (tuning.cc)."""
    recent = kind.capability >= HOPPER and settings.release >= (2, 27)
    return PXN if recent else PXB


def _slowest(hosts: Sequence[Channels]) -> Channels:
    """What all hosts can do: of each figure the least, each way the farthest (ncclCommInitRank)."""
    fewest = min(hosts, key=lambda channels: channels.count)
    return replace(
        fewest,
        pattern=max(channels.pattern for channels in hosts),
        inside=min(channels.inside for channels in hosts),
        between=min(channels.between for channels in hosts),
        type_inside=max(channels.type_inside for channels in hosts),
        type_between=max(channels.type_between for channels in hosts),
        same=all(channels.same for channels in hosts),
    )


def _balanced(group: Group, kind: Generation, fabric: Any) -> bool:
    """Whether a tree may talk to the network over its first two GPUs: both as near to one NIC; before Hopper always."""
    if group.per_node == 1:
        return False
    if kind.capability < HOPPER:
        return True
    if fabric is None or "nic" not in fabric.nodes.kinds:
        return group.net.nics < group.per_node
    nic = fabric.nearest(group.hosts[0][0], "nic")
    first, second = (
        {
            fabric.nodes.kinds[fabric.node_index(fabric.links.dst[i])]
            for i in fabric.route(gpu, nic)
        }
        for gpu in group.hosts[0][:2]
    )
    return first == second


def _across(
    group: Group, kind: Generation, inside: float
) -> tuple[int, float, float, float]:
    """Channels, GB/s of a ring's and a tree's channel in a host, and between hosts: one channel per NIC."""
    local = max(1, int(group.per_node))
    if group.net.nics > MAX_GRAPH_CHANNELS:
        count, speed = _of_rack(group, kind, inside * local / max(1, local - 1))
    else:
        count = max(1, group.net.nics)
        # Of g GPUs in a row each passes on all but one in g channels.
        room = inside / count * local / max(1, local - 1)
        speed = _fastest(min(group.net.speed / 1e9, room), kind.net_speeds)
    if _divisible(speed, count, kind):
        count, speed = 2 * count, speed / 2
    # Second pass: inside a host a tree may be up to twice as fast as between hosts.
    roomy = inside / count * local / (local - 1) if local > 1 else 5000.0
    return count, speed, _raised(speed, min(2 * speed, roomy), kind), speed


def _raised(speed: float, most: float, kind: Generation) -> float:
    """The highest of a speed and those of NCCL's that are at most `most` (GB/s)."""
    return max([speed, *(float(s) for s in kind.net_speeds if s <= most + 1e-9)])


def _alone(
    group: Group, kind: Generation, inside: float
) -> tuple[int, float, float, float]:
    """`_across` of a single host. Of two GPUs a chain uses one direction per tree: the second pass doubles it."""
    count, ring = _best(inside, kind.host_speeds, kind)
    return count, ring, (2 * ring if group.n == 2 else ring), ring


def _of_rack(group: Group, kind: Generation, inside: float) -> tuple[int, float]:
    """Channels and GB/s of a rack of NVL72: the GPUs' NVLinks, not the NICs, say how many."""
    speeds = [s for s in kind.net_speeds if s <= group.net.speed / 1e9 + 1e-9]
    fit = {s: min(MAX_GRAPH_CHANNELS, int(inside / s + 1e-9)) for s in speeds}
    speed = max(speeds, key=lambda s: (fit[s] * s, s))
    return fit[speed], float(speed)


def _fastest(most: float, speeds: Sequence[float]) -> float:
    """The fastest of NCCL's speeds that is at most so fast, or its slowest (GB/s)."""
    return float(next((s for s in speeds if s <= most + 1e-9), speeds[-1]))


def _divisible(speed: float, count: int, kind: Generation) -> bool:
    """Whether the search makes two channels of half the speed out of each."""
    few = kind.capability < HOPPER or speed >= 50 or count <= 4
    return speed >= 25 and few and 2 * count <= MAX_GRAPH_CHANNELS


def _best(
    bandwidth: float, speeds: tuple[float, ...], kind: Generation
) -> tuple[int, float]:
    """Channels and GB/s each of the fastest set of equal channels that a GPU's links carry."""
    count, speed = 1, min(bandwidth, float(speeds[-1]))
    for candidate in speeds:
        if count * speed > speeds[-1] and candidate <= 0.49 * speed:
            break  # the search does not go below half of what it has found
        fit = min(MAX_GRAPH_CHANNELS, int(bandwidth / candidate + 1e-9))
        if fit * candidate > count * speed:
            count, speed = fit, float(candidate)
    return (2 * count, speed / 2) if _divisible(speed, count, kind) else (count, speed)


def _with_multicast(
    graph: Graph, group: Group, kind: Generation, inside: float, settings: Nccl
) -> Graph:
    """The graph with what NVLink SHARP gets, where GPUs have it; a head loads its GPU twice."""
    local, many = group.smallest, group.nodes > 1
    if local < 2 or not kind.multicast:
        return graph
    heads = min(MAX_HEADS, local, group.net.nics if many else local)
    speeds = kind.net_speeds if many else kind.host_speeds
    # Between hosts the search begins at what a NIC does.
    nic = group.net.speed / 1e9
    speed = _fastest(min(inside / (heads + 1), nic), speeds)
    return replace(
        graph,
        heads=heads,
        nvls=speed,
        nvls_inter=_fastest(min(2 * speed, nic), speeds),
        nvls_channels=_multicast_channels(kind, many, settings),
    )


def _multicast_channels(kind: Generation, many: bool, settings: Nccl) -> int:
    """CTAs of NVLink SHARP, within the limits of the settings."""
    ctas = kind.multicast_ctas[many]
    low, high = settings.least_channels, settings.max_ctas or 64
    return max(1, min(max(ctas, min(low, high)), high))


def _limited(settings: Nccl, channels: int) -> int:
    """Channels within the limits of the release and of the settings."""
    most = settings.most_channels
    channels = max(
        1, min(channels, settings.max_channels or most, settings.max_ctas or most)
    )
    return max(channels, min(settings.least_channels, settings.max_ctas or most))


def _messages(group: Group, settings: Nccl, channels: int) -> tuple[int, int]:
    """Channels for all messages, and for one (init.cc: the upper limit comes first)."""
    most = settings.max_p2p_nchannels or channels
    least = settings.min_p2p_nchannels or 1
    p2p = power_of_two(max(min(channels, most), least))
    if group.nodes == 1:
        # NVLink: two channels per link of the GPU, all of them (36 of 18 links) within the p2p channels.
        return p2p, p2p
    if settings.nchannels_per_net_peer:
        return p2p, min(power_of_two(settings.nchannels_per_net_peer), p2p)
    if settings.release < (2, 21):
        return p2p, min(2, p2p)
    per_gpu = group.net.per_gpu
    if settings.release >= (2, 29):
        per_peer = power_of_two(
            max(per_gpu, math.ceil(group.net.speed / 1e9 / NET_PER_CHANNEL))
        )
        while per_peer * math.ceil(group.n / 8) > p2p and per_peer > 1:
            per_peer //= 2
        return p2p, min(per_peer, p2p)
    per_peer = 2
    while per_peer * group.n > 4 * p2p and per_peer > 1:
        per_peer //= 2
    return p2p, min(power_of_two(max(per_peer, per_gpu)), p2p)


def power_of_two(count: int) -> int:
    """The smallest power of two that is no less than `count`."""
    return 1 << (count - 1).bit_length()
