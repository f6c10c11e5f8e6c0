"""Channels that NCCL's search finds on a fabric, and how fast it believes each to be.

Rules of NCCL 2.28: src/graph/search.cc (speeds, duplication, second pass), connect.cc (channels of a communicator),
paths.cc (send and receive). With all GPUs of a host on NVSwitches, or one GPU per host, the outcome of the search
follows from bandwidths alone (a test holds it against the search); elsewhere (PCIe, NVLink without switches, host
memory) it is searched edge by edge: `sim.collectives.nccl.graphs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sim.collectives.group import Group
from sim.collectives.nccl import searched
from sim.collectives.nccl.speeds import (
    NET_SPEEDS,
    NVLINK,
    SPEEDS,
    generation,
    most_channels,
    nvlink_share,
)
from sim.collectives.nccl.system import NVB, NVL, PXB
from sim.collectives.wires.transport import PCIE, between
from sim.spec.sections import Nccl

__all__ = [
    "NET_SPEEDS",
    "NVLINK",
    "SPEEDS",
    "Graph",
    "generation",
    "power_of_two",
    "search",
]

MAX_GRAPH_CHANNELS = 32
MAX_HEADS = 32
NET_PER_CHANNEL = (
    14.0  # GB/s of a NIC that one channel of messages is meant for, since 2.29
)


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
    kind = generation(gpu)
    if fabric is not None and not switched(group, fabric):
        return _searched(group, fabric, settings)
    nvlink = "nvlink" in group.local_kind
    share = nvlink_share(kind, settings.release) if nvlink else PCIE
    inside = (
        group.local_wire * share / 1e9 if group.local_wire < float("inf") else 5000.0
    )
    if group.nodes > 1:
        count, ring, tree, inter = _across(group, kind, inside)
    else:
        count, ring = _best(inside, SPEEDS[kind], kind)
        # Two GPUs: a chain uses only one direction per tree, so the second pass doubles it.
        tree, inter = (2 * ring if group.n == 2 else ring), ring
    channels = 2 * count
    if (
        group.nodes > 1
        and kind in ("hopper", "blackwell")
        and ring > 45
        and channels < 16
    ):
        channels *= 2
    channels = _limited(settings, channels)
    heads, nvls, nvls_inter, ctas = _multicast(group, kind, inside, settings)
    return Graph(
        count,
        ring,
        tree,
        inter,
        channels,
        *_messages(group, settings, channels),
        pattern=3 if group.nodes > 1 and not _balanced(group, kind, fabric) else 1,
        same=group.nodes == 1 or group.net.nics == 1 or group.per_node == 1,
        heads=heads,
        nvls=nvls,
        nvls_inter=nvls_inter,
        nvls_channels=ctas,
        nvlink=nvlink,
        ll128=(nvlink or group.per_node == 1) and group.net.trusted(settings.release),
    )


def switched(group: Group, fabric: Any) -> bool:
    """Whether bandwidths alone decide: as many GPUs on every host, and they meet in NVSwitches, or there is one."""
    host = max(group.hosts, key=len)
    if len(host) < 2:
        return True
    if min(map(len, group.hosts)) < len(host):
        return False
    links, _ = between(fabric, host[0], host[1], group.inside)
    return any(
        fabric.nodes.kinds[fabric.node_index(fabric.links.dst[i])] == "nvswitch"
        for i in links
    )


def _searched(group: Group, fabric: Any, settings: Nccl) -> Graph:
    """The same, searched edge by edge; of every figure the least that some host finds (init.cc)."""
    kind, graphs = (
        generation(fabric.gpu_model),
        searched.every_host(group, fabric, settings),
    )
    rings, trees = [g.ring for g in graphs], [g.tree for g in graphs]
    ring, tree = (min(one, key=lambda g: g.count * g.inside) for one in (rings, trees))
    count = min(g.count for g in (*rings, *trees))
    channels = 2 * count
    if (
        group.nodes > 1
        and kind in ("hopper", "blackwell")
        and ring.inside > 45
        and channels < 16
    ):
        channels *= 2
    channels = _limited(settings, channels)
    inside = group.local_wire * nvlink_share(kind, settings.release) / 1e9
    heads, nvls, nvls_inter, ctas = (0, 0.0, 0.0, 0)
    if graphs[0].nvls is not None:
        heads, nvls, nvls_inter, ctas = _multicast(group, kind, inside, settings)
    p2p, per_peer = _messages(group, settings, channels)
    near = ring.type_inside <= NVB
    return Graph(
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
        heads=heads,
        nvls=nvls,
        nvls_inter=nvls_inter,
        nvls_channels=ctas,
        ll128=near and (group.nodes == 1 or ring.type_between <= PXB),
    )


def _balanced(group: Group, kind: str, fabric: Any) -> bool:
    """Whether a tree may talk to the network over its first two GPUs: both as near to one NIC; before Hopper always."""
    if group.per_node == 1:
        return False
    if kind in ("volta", "ampere"):
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


def _across(group: Group, kind: str, inside: float) -> tuple[int, float, float, float]:
    """Channels, GB/s of a ring's and a tree's channel in a host, and between hosts: one channel per NIC."""
    nics, local = (
        min(MAX_GRAPH_CHANNELS, max(1, group.net.nics)),
        max(1, int(group.per_node)),
    )
    # Of g GPUs in a row each passes on all but one in g channels.
    room = inside / nics * local / max(1, local - 1)
    fits = min(group.net.speed / 1e9, room)
    speeds = NET_SPEEDS[kind]
    speed = next((s for s in speeds if s <= fits + 1e-9), float(speeds[-1]))
    count = nics
    if (
        group.net.nics > MAX_GRAPH_CHANNELS
    ):  # a rack of NVL72: the GPUs' NVLinks, not the NICs, say how many
        whole = inside * local / max(1, local - 1)
        fast = [s for s in speeds if s <= group.net.speed / 1e9 + 1e-9]
        fit = {s: min(MAX_GRAPH_CHANNELS, int(whole / s + 1e-9)) for s in fast}
        speed = max(fast, key=lambda s: (fit[s] * s, s))
        count = fit[speed]
    if _divisible(speed, count, kind):
        count, speed = 2 * count, speed / 2
    # Second pass: inside a host a tree may be up to twice as fast as between hosts.
    roomy = inside / count * local / (local - 1) if local > 1 else 5000.0
    tree = max(
        [float(speed), *(float(s) for s in speeds if s <= min(2 * speed, roomy) + 1e-9)]
    )
    return count, float(speed), tree, float(speed)


def _divisible(speed: float, count: int, kind: str) -> bool:
    """Whether the search makes two channels of half the speed out of each."""
    few = kind not in ("hopper", "blackwell") or speed >= 50 or count <= 4
    return speed >= 25 and few and 2 * count <= MAX_GRAPH_CHANNELS


def _best(bandwidth: float, speeds: tuple[int, ...], kind: str) -> tuple[int, float]:
    """Channels and GB/s each of the fastest set of equal channels that a GPU's links carry."""
    count, speed = 1, min(bandwidth, float(speeds[-1]))
    for candidate in speeds:
        if count * speed > speeds[-1] and candidate <= 0.49 * speed:
            break  # the search does not go below half of what it has found
        fit = min(MAX_GRAPH_CHANNELS, int(bandwidth / candidate + 1e-9))
        if fit * candidate > count * speed:
            count, speed = fit, float(candidate)
    return (2 * count, speed / 2) if _divisible(speed, count, kind) else (count, speed)


def _multicast(
    group: Group, kind: str, inside: float, settings: Nccl
) -> tuple[int, float, float, int]:
    """Heads, GB/s of each in a host and between hosts, and CTAs of NVLink SHARP; a head loads its GPU twice."""
    local = int(group.per_node)
    if local < 2 or kind not in ("hopper", "blackwell"):
        return 0, 0.0, 0.0, 0
    heads = min(MAX_HEADS, local, group.net.nics if group.nodes > 1 else local)
    speeds = NET_SPEEDS[kind] if group.nodes > 1 else SPEEDS[kind]
    # Between hosts the search begins at what a NIC does.
    fits = min(inside / (heads + 1), group.net.speed / 1e9)
    speed = next((float(s) for s in speeds if s <= fits + 1e-9), float(speeds[-1]))
    most = min(2 * speed, group.net.speed / 1e9)
    between = next((float(s) for s in speeds if s <= most + 1e-9), float(speeds[-1]))
    ctas = 16 if kind == "hopper" else 24 if group.nodes == 1 else 32
    low, high = settings.min_channels or 1, settings.max_ctas or 64
    return heads, speed, between, max(1, min(max(ctas, min(low, high)), high))


def _limited(settings: Nccl, channels: int) -> int:
    most = most_channels(settings.release)
    channels = max(
        1, min(channels, settings.max_channels or most, settings.max_ctas or most)
    )
    return max(channels, min(settings.min_channels or 1, settings.max_ctas or most))


def _messages(group: Group, settings: Nccl, channels: int) -> tuple[int, int]:
    """Channels for all messages, and for one."""
    p2p = power_of_two(channels)
    if group.nodes == 1:
        # NVLink: two channels per link of the GPU, all of them (36 of 18 links) within the p2p channels.
        return p2p, p2p
    if settings.nchannels_per_net_peer:
        return p2p, min(power_of_two(settings.nchannels_per_net_peer), p2p)
    if settings.release < (2, 21):
        return p2p, min(2, p2p)
    per_gpu = max(1, round(group.net.nics / group.per_node))
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
