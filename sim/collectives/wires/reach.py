"""How far apart GPUs of a machine may be to talk directly, as NCCL decides it (src/graph/paths.cc, ncclTopoCheckP2p).

Two GPUs are as far apart as their NVLink or the farthest thing on the PCIe between them: NVL, C2C, PIX (one switch),
PXB (several), PHB (a CPU), SYS (two sockets). Peer-to-peer goes up to PXB, between the two GPUs of an AMD host up to
SYS; NCCL_P2P_LEVEL says another limit. Whoever is farther goes through the host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prestep.sim.collectives.nccl import ways
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths
from prestep.sim.errors import InputError

#: Routes of `prestep.sim.collectives.wires.transport` that say how far peer-to-peer goes.
LEVELS = ("NVL", "PIX", "PXB", "PHB", "SYS")
SHM, STAGED = "shm", "staged"


def limit(settings: Nccl, fabric: Any, gpus: int) -> int:
    """The type of the farthest way that is peer-to-peer, on a host with so many GPUs of the communicator."""
    if settings.p2p_level is not None:
        return ways.TYPES.index(settings.p2p_level)
    return ways.SYS if fabric.cluster_facts.amd_cpu and gpus <= 2 else ways.PXB


def distance(fabric: Any, a: str, b: str) -> int:
    """The type of the way between two GPUs of a machine, or a GPU and a NIC."""
    return paths.once_routed(
        fabric, ("distance", a, b), lambda: _distance(fabric, a, b)
    )


def _distance(fabric: Any, a: str, b: str) -> int:
    links, _ = paths.split(fabric, a, b)
    if not len(links):
        return ways.LOC
    kinds = set(fabric.links.kind[links].tolist())
    between = {*fabric.links.src[links].tolist()} - {a, b}
    nodes = [fabric.nodes.kinds[fabric.node_index(name)] for name in sorted(between)]
    if "socket" in kinds:
        return ways.SYS
    if kinds == {"nvlink"}:
        return ways.NVB if "gpu" in nodes else ways.NVL
    if "pcie" not in kinds:
        return ways.C2C
    if "cpu" in nodes:
        return ways.P2C if "c2c" in kinds else ways.PHB
    return ways.PXB if nodes.count("pcieswitch") > 1 else ways.PIX


def route(fabric: Any, hosts: Sequence[Sequence[str]], settings: Nccl) -> str:
    """How bytes travel in hosts: "auto" where all are peers, "shm" where none is, else the farthest type of peers."""
    if settings.peers_off:
        return SHM
    first = {len(host): host for host in reversed(hosts)}
    for gpus, host in first.items():
        farthest = limit(settings, fabric, gpus)
        if any(apart > farthest for apart in _apart(fabric, host)):
            return ways.TYPES[farthest]
    return "auto"


def _apart(fabric: Any, host: Sequence[str]) -> list[int]:
    """How far apart the GPUs of a host are; on NVSwitches as far as the first two, whatever their number."""
    if len(host) < 2 or fabric.host_of(host[0]) != fabric.host_of(host[-1]):
        return []
    pairs = [(a, b) for at, a in enumerate(host) for b in host[:at]]
    if (
        distance(fabric, host[0], host[1]) == ways.NVL
        and len(pairs) > 1
        and "nvswitch" in fabric.nodes.kinds
    ):
        return [ways.NVL]
    return [distance(fabric, a, b) for a, b in pairs]


def out(fabric: Any, hosts: Sequence[Sequence[str]], settings: Nccl) -> str:
    """How bytes leave hosts: "staged" in their memory where a NIC is too far from its GPU for GPUDirect, else "auto".

    Raises
    ------
    InputError
        If the level is said, and the cluster does not say where its NICs and its memory are.
    """
    if settings.net_gdr_level is None or len(hosts) < 2:
        return "auto"
    if not {"nic", "memory"} <= set(fabric.nodes.kinds):
        found, expected = (
            f'"{settings.net_gdr_level}"',
            "a cluster with NICs and memory",
        )
        raise InputError.of(fabric.name, "nccl.net_gdr_level", found, expected)
    farthest = ways.TYPES.index(settings.net_gdr_level)
    own = ((gpu, fabric.nearest(gpu, "nic")) for gpu in hosts[0])
    far = any(distance(fabric, gpu, nic) > farthest for gpu, nic in own)
    return STAGED if far else "auto"


def peers(fabric: Any, a: str, b: str, route_: str) -> bool:
    """Whether two GPUs of a machine talk directly by a route."""
    if route_ not in LEVELS:
        return route_ != SHM
    return distance(fabric, a, b) <= ways.TYPES.index(route_)
