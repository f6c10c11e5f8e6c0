"""How bytes get from one GPU to another: NVLink or PCIe, the host's memory, or the network.

NCCL decides per pair (src/graph/paths.cc, src/transport/): P2P inside a host up to [nccl] p2p_level and unless
p2p_disable, else through host memory unless shm_disable; ranks with different host ids only over the network, even on
one machine.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from prestep.sim.collectives.wires import paths, processes, reach
from prestep.sim.graph.opgraph import by_link

Flow = tuple[str, str, float]
#: Routes that pass more than links of the fabric's own way.
STOPS = ("net", reach.SHM, reach.STAGED, *reach.LEVELS)


def expand(fabric: Any, flows: list[Flow], route: str) -> list[Flow]:
    """Flows between GPUs as flows between the stations they pass.

    `route`: auto, shm (host memory), net (NICs), staged (memory beside a NIC, between hosts), or the type of way up to
    which GPUs are peers; others by memory.
    """
    if route not in STOPS:
        return flows
    out: list[Flow] = []
    for src, dst, amount in flows:
        if fabric.host_of(src) != fabric.host_of(dst) and route != reach.STAGED:
            out.append((src, dst, amount))
            continue
        if route in reach.LEVELS and reach.peers(fabric, src, dst, route):
            out.append((src, dst, amount))
            continue
        lanes = _lanes(fabric, src, dst, route)
        for stations in lanes:
            stops = (src, *stations, dst)
            hops = [pair for pair in pairwise(stops) if pair[0] != pair[1]]
            out += [(a, b, amount / len(lanes)) for a, b in hops]
    return out


def _lanes(fabric: Any, src: str, dst: str, route: str) -> list[tuple[str, ...]]:
    """What lies between two GPUs of one machine: its memory; or a NIC, the switch behind it and a NIC, by each NIC."""
    if route == reach.STAGED:
        return _staged(fabric, src, dst)
    if route != "net":
        return [(processes.memory_of(fabric, src),)]
    ways_out, ways_back = own_nics(fabric, src), own_nics(fabric, dst)
    return [
        (out, *_behind(fabric, out), back)
        for out, back in zip(ways_out, ways_back, strict=False)
    ]


def _staged(fabric: Any, src: str, dst: str) -> list[tuple[str, ...]]:
    """Without GPUDirect: the sender's memory, the NICs beside it, the receiver's, and its memory."""
    a, b = (processes.memory_of(fabric, gpu) for gpu in (src, dst))
    pairs = zip(own_nics(fabric, src), own_nics(fabric, dst), strict=False)
    return [(a, out, back, b) for out, back in pairs]


def own_nics(fabric: Any, gpu: str) -> tuple[str, ...]:
    """The NICs beside a GPU; GPUs that are as near to the same NICs share them out, one at least for each."""
    nics: tuple[str, ...] = fabric.all_nearest(gpu, "nic")
    sharing = fabric.all_nearest(nics[0], "gpu")
    each = len(nics) // len(sharing)
    if not each or gpu not in sharing:
        return nics[:1]
    first = each * sharing.index(gpu)
    return nics[first : first + each]


def _behind(fabric: Any, nic: str) -> tuple[str, ...]:
    """The switch that a NIC is plugged into; none where the graph has none."""
    leaving = [
        i
        for i in np.flatnonzero(fabric.links.src == nic)
        if fabric.links.kind[i] != "pcie"
    ]
    return (str(fabric.links.dst[leaving[0]]),) if leaving else ()


def between(
    fabric: Any, src: str, dst: str, route: str
) -> tuple[np.ndarray, np.ndarray]:
    """Links from one GPU to another and the share of the bytes on each."""
    flows = expand(fabric, [(src, dst, 1.0)], route)
    return (
        paths.gather(fabric, flows) if len(flows) > 1 else paths.split(fabric, src, dst)
    )


def ways(
    fabric: Any, pairs: list[tuple[str, str]], route: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`between` of many pairs: number of the pair, link and share, sorted by pair and link."""
    if route not in STOPS:
        return paths.spreads(fabric, pairs)
    parts = [between(fabric, src, dst, route) for src, dst in pairs]
    if not parts:
        return paths.spreads(fabric, [])
    number = np.repeat(np.arange(len(parts)), [len(links) for links, _ in parts])
    return (
        number,
        np.concatenate([links for links, _ in parts]),
        np.concatenate([share for _, share in parts]),
    )


def halves(
    fabric: Any, pairs: list[tuple[str, str]], out: float, back: float
) -> tuple[np.ndarray, np.ndarray]:
    """The parts of routes that touch the first of each pair (a GPU's own links to its switches), with bytes.

    `out` bytes leave it towards the second, `back` come from there.
    """
    parts = []
    for side, amount in ((0, out), (1, back)):
        number, links, share = paths.spreads(
            fabric, pairs if side == 0 else [(b, a) for a, b in pairs]
        )
        mine = (
            fabric.ends[side][links]
            == fabric.positions([gpu for gpu, _ in pairs])[number]
        )
        parts.append((links[mine], share[mine] * amount))
    return by_link(parts)


def relays(group: Any) -> bool:
    """Whether PXN relays messages between the hosts of a group."""
    return (
        group.nodes > 1
        and group.outside != reach.STAGED
        and len(group.first_of_size) == 1
        and "nvlink" in group.local_kind
    )


def relayed(flows: list[Flow], group: Any) -> list[Flow]:
    """PXN: messages to another host go over NVLink to the GPU that shares the receiver's rail and leave by its NIC.

    Only where hosts have equally many GPUs on NVLink; flows between the same two GPUs are added up.
    """
    if not relays(group):
        return flows
    place = {
        gpu: (h, k) for h, host in enumerate(group.hosts) for k, gpu in enumerate(host)
    }
    total: dict[tuple[str, str], float] = {}
    for src, dst, amount in flows:
        (a, _), (b, k) = place[src], place[dst]
        relay = src if a == b else group.hosts[a][k]
        for pair in ((src, relay), (relay, dst)):
            if pair[0] != pair[1]:
                total[pair] = total.get(pair, 0.0) + amount
    return [(src, dst, amount) for (src, dst), amount in total.items()]
