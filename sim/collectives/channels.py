"""Channels: how many NCCL's search finds on a fabric, and how many of them one operation uses.

Rules of NCCL 2.28: src/graph/search.cc and connect.cc (search), src/enqueue.cc (threads, split by cells),
src/graph/paths.cc (send and receive).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.collectives.group import Group
from sim.collectives.plan import Settings
from sim.collectives.protocols import MAX_THREADS

# GB/s per channel that the search tries, by generation of GPU (search.cc).
SPEEDS = {
    "ampere": (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "hopper": (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    "blackwell": (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
NET_SPEEDS = (96, 86, 80, 48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)
MAX_GRAPH_CHANNELS = 32
# Bytes per thread below which a channel, then half of its threads, is given up.
THREAD_BYTES = {"LL": 8, "LL128": 8, "Simple": 64}
P2P_CHUNK = {"local": 524_288, "network": 131_072}
P2P_LL_BYTES = 16_384


@dataclass(frozen=True)
class Graph:
    """The outcome of the search: channels before doubling, GB/s of each inside a host and between hosts."""

    count: int
    ring: float
    tree: float
    inter: float
    channels: int
    p2p: int
    per_peer: int


def generation(gpu: str) -> str:
    """The row of NCCL's tables for a GPU model: ampere, hopper or blackwell."""
    name = gpu.lower()
    if name.startswith(("b1", "b2", "b3", "gb")):
        return "blackwell"
    return "ampere" if name.startswith("a") else "hopper"


def search(group: Group, gpu: str, settings: Settings, nvlink_payload: float) -> Graph:
    """Channels of a communicator; `nvlink_payload` is the share of link bandwidth that NCCL counts on."""
    kind = generation(gpu)
    inside = group.local * nvlink_payload / 1e9 if group.local < float("inf") else 5000.0
    if group.nodes > 1:
        nics = min(len(host) for host in group.hosts)
        inter = next((s for s in NET_SPEEDS if s <= group.remote / 1e9), NET_SPEEDS[-1])
        count, ring, tree = nics, min(inter, inside), min(inter, inside)
    else:
        count, ring = _best(inside, SPEEDS[kind], kind)
        # Two GPUs: a chain uses only one direction per tree, so the second pass doubles it.
        tree, inter = (2 * ring if group.n == 2 else ring), ring
    channels = 2 * count
    if group.nodes > 1 and kind != "ampere" and ring > 45 and channels < 16:
        channels *= 2
    return Graph(count, ring, tree, inter, *_limited(group, settings, channels, count))


def _limited(group: Group, settings: Settings, channels: int, count: int) -> tuple[int, int, int]:
    channels = max(1, min(channels, settings.max_channels or 64))
    channels = max(channels, settings.min_channels or 1)
    p2p = 1 << (channels - 1).bit_length()
    if group.nodes == 1:
        # NVLink: two channels per link of the GPU, all of them (36 of 18 links) within the p2p channels.
        per_peer = p2p
    else:
        per_peer = 2
        while per_peer * group.n > 4 * p2p and per_peer > 1:
            per_peer //= 2
        per_peer = min(per_peer, p2p)
    return channels, p2p, per_peer


def _best(bandwidth: float, speeds: tuple[int, ...], kind: str) -> tuple[int, float]:
    """Channels and GB/s each of the fastest set of equal channels that a GPU's links carry."""
    count, speed = 1, min(bandwidth, float(speeds[-1]))
    for candidate in speeds:
        fit = min(MAX_GRAPH_CHANNELS, int(bandwidth / candidate + 1e-9))
        if fit * candidate > count * speed:
            count, speed = fit, float(candidate)
    wide = speed >= 25 and not (kind == "blackwell" and speed < 50 and count > 4)
    if wide and 2 * count <= MAX_GRAPH_CHANNELS:
        return 2 * count, speed / 2
    return count, speed


def used(op: str, size: float, n: int, algo: str, proto: str, available: int) -> tuple[int, int]:
    """Channels and threads per channel of one operation (enqueue.cc: thresholds, then cells of traffic)."""
    threads = MAX_THREADS[proto]
    per_thread = THREAD_BYTES[proto] * (n if algo == "ring" and proto == "LL" else 1)
    count = available
    while size < count * threads * per_thread:
        if count >= 2:
            count -= 1
        elif threads % 128 == 0:
            threads //= 2
        else:
            break
    traffic = {"all_reduce": 2, "all_gather": n, "reduce_scatter": n}.get(op, 1) * (4 if proto == "LL" else 1)
    cell = max(16, math.ceil(32_768 / traffic / 16) * 16)
    per_channel = max(32_768.0, size * traffic) / count
    cells = max(1, math.ceil(per_channel / (cell * traffic)))
    return max(1, min(count, math.ceil(size / (cell * cells)))), max(96, threads)


def message_channels(size: float, n: int, graph: Graph, nodes: int) -> int:
    """Channels of one message between two ranks (init.cc, enqueue.cc: parts of bounded size)."""
    chunk = P2P_CHUNK["network" if nodes > 1 else "local"]
    smallest, largest = (chunk / 2, chunk) if nodes > 1 else (chunk / 8, 32 * chunk)
    most = graph.per_peer
    while most * n > graph.p2p and most > 1:
        most //= 2
    count = max(1, min(most, math.ceil(size / smallest)))
    while size / count > largest and count <= graph.per_peer // 2:
        count *= 2
    return count


def first_channel(round_: int, p2p: int) -> int:
    """The channel on which the messages of a round begin: its number with the bits reversed."""
    bits = p2p.bit_length() - 1
    return int(format(round_ % p2p, f"0{bits}b")[::-1], 2) if bits else 0
