"""The network as NCCL sees it: how many NICs the GPUs of a host use, and how fast each is.

NICs that share a GPU alone count as one, as AWS's plug-in for NCCL groups them (p5: four beside every GPU); which do is
a matter of the machine, whatever GPUs a communicator has on it. Everywhere else each NIC is one, and GPUs as near to
the same NICs share them (GB200: two and two).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prestep.sim.collectives.wires import transport
from prestep.sim.collectives.wires.network import INSIDE

# NCCL's speed of a PCIe slot over the slot's wire (src/graph/topo.cc: 48 GB/s for Gen5 x16 of 63 GB/s).
PCIE = 48 / 63.0


@dataclass(frozen=True)
class Net:
    """The network as NCCL sees it from the host that has least of it.

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
    per_gpu : int
        NICs beside each GPU of the communicator.
    """

    nics: int
    speed: float
    near: bool
    c2c: bool = False
    per_gpu: int = 1

    def trusted(self, release: tuple[int, ...]) -> bool:
        """Whether a release of NCCL sends LL128 over the way to the NIC; before 2.27 C2C was a way over the CPU (PHB).

        NCCL src/graph/tuning.cc and topo.h; GPUDirect over C2C is on by default since the same release.
        """
        return self.near and (not self.c2c or release >= (2, 27))


NO_NET = Net(0, float("inf"), True)


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
    """The NICs that hosts use; where hosts differ in GPUs, the least that one of them has, whichever comes first.

    `seen` is a speed that the driver reports instead of the true one.
    """
    if len(hosts) < 2:
        return NO_NET
    reported = fabric.cluster_facts.net_reported if seen is None else seen
    following = zip(hosts, hosts[1:] + hosts[:1], strict=True)
    sizes = {len(here): (here, there) for here, there in reversed([*following])}
    nets = [_of_host(fabric, *pair, route, reported) for pair in sizes.values()]
    return Net(
        min(net.nics for net in nets),
        min(net.speed for net in nets),
        near=all(net.near for net in nets),
        c2c=any(net.c2c for net in nets),
        per_gpu=min(net.per_gpu for net in nets),
    )


def _of_host(
    fabric: Any,
    here: tuple[str, ...],
    there: tuple[str, ...],
    route: str,
    reported: float | None,
) -> Net:
    """The NICs by which a host's GPUs reach another host."""
    pairs = [(gpu, there[k % len(there)]) for k, gpu in enumerate(here)]
    if route not in transport.STOPS:
        fabric.prefetch(pairs)
    ways = [_way_out(fabric, *pair, route, reported) for pair in pairs]
    nics, speed = _counted(fabric, here[0], ways)
    return Net(
        nics,
        speed,
        near=all(way.near for way in ways),
        c2c=any(way.c2c for way in ways),
        per_gpu=max(1, round(nics / len(here))),
    )


def _counted(fabric: Any, gpu: str, ways: Sequence[_WayOut]) -> tuple[int, float]:
    """How many NICs count on a host, and bytes/s of one of them."""
    ports = {link for way in ways for link in way.nics}
    port, whole = min(way.port for way in ways), min(way.speed for way in ways)
    if len(ports) <= len(ways):
        return len(ports), port
    sets = {way.nics for way in ways}
    if merged(fabric, gpu) > 1:
        return len(sets), whole
    if len(ports) < sum(map(len, sets)) or min(map(len, sets)) < 2:
        return len(ports), port
    # NICs that other GPUs of the machine use too, but none of the communicator: as many as the slot has room for.
    each = max(1, int(whole / port + 1e-9))
    return each * len(sets), whole / each


def merged(fabric: Any, gpu: str) -> int:
    """How many NICs count as one beside a GPU: those that no other GPU of the machine is as near to."""
    if "nic" not in fabric.nodes.kinds:
        return 1
    nics: tuple[str, ...] = fabric.all_nearest(gpu, "nic")
    sharing: tuple[str, ...] = fabric.all_nearest(nics[0], "gpu")
    return max(1, len(nics) // len(sharing)) if gpu in sharing else 1


def _way_out(
    fabric: Any, gpu: str, peer: str, route: str, reported: float | None
) -> _WayOut:
    links, share = transport.between(fabric, gpu, peer, route)
    raw, kinds = fabric.links.raw[links], fabric.links.kind[links].tolist()
    src, nodes, host = fabric.ends[0][links], fabric.nodes, fabric.host_of(gpu)
    # What links leave in the GPU's own host.
    left = [nodes.kinds[at] if nodes.hosts[at] == host else "" for at in src.tolist()]
    ends = enumerate(zip(left, kinds, strict=True))
    nics = [j for j, (node, kind) in ends if node == "nic" and kind not in INSIDE]
    if not nics:  # no NIC in the graph: the GPU's own way out
        nics = [0]
    if reported is not None:
        raw[nics] = reported
    slots = [j for j, kind in enumerate(kinds) if kind == "pcie"]
    whole = _slowest(raw / share, nics, slots)
    # A NIC whose ports are in several planes is one to NCCL: its first port stands for it, as wide as all.
    raw[nics] = [raw[nics][src[nics] == src[j]].sum() for j in nics]
    nics = sorted({int(src[j]): j for j in reversed(nics)}.values())
    # A CPU on the way out counts as near (P2C) where NVLink-C2C ties the GPU to it.
    return _WayOut(
        tuple(int(links[j]) for j in nics),
        whole,
        _slowest(raw, nics, slots),
        "cpu" not in left or "c2c" in kinds,
        "c2c" in kinds,
    )


def _slowest(width: np.ndarray, nics: list[int], slots: list[int]) -> float:
    """Bytes/s of the slowest of some NICs and PCIe slots, at positions of `width`."""
    wires = [float(width[j]) for j in nics]
    return min(wires + [PCIE * float(width[j]) for j in slots])
