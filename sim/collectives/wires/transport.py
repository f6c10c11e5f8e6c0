"""How bytes get from one GPU to another: NVLink or PCIe, the host's memory, or the network.

NCCL decides per pair (src/graph/paths.cc, src/transport/): P2P inside a host unless [nccl] p2p_disable, then through
host memory unless shm_disable; ranks with different host ids only over the network, even on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sim.collectives.wires import paths
from sim.graph.usage import by_link

Flow = tuple[str, str, float]
# NCCL's speed of a PCIe slot over the slot's wire (src/graph/topo.cc: 48 GB/s for Gen5 x16 of 63 GB/s).
PCIE = 48 / 63.0


@dataclass(frozen=True)
class Net:
    """The network as NCCL sees it from one host.

    Attributes
    ----------
    nics : int
        NICs that the group's GPUs of one host use.
    speed : float
        Bytes/s of one of them: its wire, or its PCIe slot.
    near : bool
        Whether GPU and NIC meet below the CPU (PIX, PXB), so that LL128 is safe and GPUDirect works.
    c2c : bool
        Whether they meet in a CPU that NVLink-C2C ties to the GPU: near too (P2C), but only since NCCL 2.27.
    """

    nics: int
    speed: float
    near: bool
    c2c: bool = False

    def trusted(self, release: tuple[int, int]) -> bool:
        """Whether a release of NCCL sends LL128 over the way to the NIC; before 2.27 C2C was a way over the CPU (PHB).

        NCCL src/graph/tuning.cc and topo.h; GPUDirect over C2C is on by default since the same release.
        """
        return self.near and (not self.c2c or release >= (2, 27))


NO_NET = Net(0, float("inf"), True)


def expand(fabric: Any, flows: list[Flow], route: str) -> list[Flow]:
    """Flows between GPUs as flows between the stations they pass, by `route`: auto, shm (host memory), net (NICs)."""
    if route not in ("shm", "net"):
        return flows
    out: list[Flow] = []
    for src, dst, amount in flows:
        if fabric.host_of(src) != fabric.host_of(dst):
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
    if route == "shm":
        return [(fabric.nearest(src, "memory"),)]
    ways_out, ways_back = own_nics(fabric, src), own_nics(fabric, dst)
    return [
        (out, *_behind(fabric, out), back)
        for out, back in zip(ways_out, ways_back, strict=False)
    ]


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
    if route not in ("shm", "net"):
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


@dataclass(frozen=True)
class _WayOut:
    """One GPU's way to another host.

    Attributes
    ----------
    nics : tuple of int
        Links by which it leaves its host.
    speed, port : float
        Bytes/s of the way, NIC or PCIe slot; and of the narrowest single link of it, if all bytes took that one.
    near, c2c : bool
        As in `Net`.
    """

    nics: tuple[int, ...]
    speed: float
    port: float
    near: bool
    c2c: bool


def network(
    fabric: Any, hosts: tuple[tuple[str, ...], ...], route: str, seen: float | None
) -> Net:
    """NICs of the first host as NCCL sees them; `seen` is a speed that the driver reports instead of the true one."""
    if len(hosts) < 2:
        return NO_NET
    here, there = hosts[0], hosts[1]
    reported = fabric.cluster_facts.net_reported if seen is None else seen
    ways_out = [
        _way_out(fabric, gpu, there[k % len(there)], route, reported)
        for k, gpu in enumerate(here)
    ]
    ports = {link for way in ways_out for link in way.nics}
    # GPUs that share several NICs (GB200: two and two) use each as one; several NICs of one GPU (p5) count as one.
    if len(ports) <= len(here):
        nics, speeds = len(ports), [way.port for way in ways_out]
    else:
        nics, speeds = (
            len({way.nics for way in ways_out}),
            [way.speed for way in ways_out],
        )
    return Net(
        nics,
        min(speeds),
        near=all(way.near for way in ways_out),
        c2c=any(way.c2c for way in ways_out),
    )


def _way_out(
    fabric: Any, gpu: str, peer: str, route: str, reported: float | None
) -> _WayOut:
    links, share = between(fabric, gpu, peer, route)
    raw, kinds = fabric.links.raw[links], fabric.links.kind[links]
    nics = [j for j, i in enumerate(links) if _leaves(fabric, int(i), gpu)]
    if not nics:  # no NIC in the graph: the GPU's own way out
        nics = [0]
    if reported is not None:
        raw[nics] = reported
    slots = [j for j, kind in enumerate(kinds) if kind == "pcie"]
    return _WayOut(
        tuple(int(links[j]) for j in nics),
        _slowest(raw / share, nics, slots),
        _slowest(raw, nics, slots),
        _near(fabric, links, gpu),
        "c2c" in kinds,
    )


def _slowest(width: np.ndarray, nics: list[int], slots: list[int]) -> float:
    """Bytes/s of the slowest of some NICs and PCIe slots, at positions of `width`."""
    wires = [float(width[j]) for j in nics]
    return min(wires + [PCIE * float(width[j]) for j in slots])


def _leaves(fabric: Any, link: int, gpu: str) -> bool:
    """Whether a link goes from a NIC of the GPU's host to the network."""
    src = fabric.node_index(fabric.links.src[link])
    outside = fabric.links.kind[link] not in (
        "pcie",
        "socket",
        "c2c",
        "nvlink",
        "memory",
    )
    return (
        fabric.nodes.kinds[src] == "nic"
        and outside
        and fabric.nodes.hosts[src] == fabric.host_of(gpu)
    )


def _near(fabric: Any, links: np.ndarray, gpu: str) -> bool:
    """No CPU on the way out, unless the GPU is tied to it by NVLink-C2C (P2C counts as near)."""
    host = fabric.host_of(gpu)
    kinds = {fabric.links.kind[i] for i in links}
    cpus = [
        name
        for i in links
        for name in (fabric.links.src[i],)
        if fabric.host_of(name) == host
        and fabric.nodes.kinds[fabric.node_index(name)] == "cpu"
    ]
    return not cpus or "c2c" in kinds


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
        and len({len(host) for host in group.hosts}) == 1
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
