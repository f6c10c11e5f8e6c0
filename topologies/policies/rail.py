"""Rail: messages stay on the receiver's rail; a GPU of another rail hands them over NVLink to its neighbour there."""

from __future__ import annotations

from prestep.topologies.core.links import Floats, Ints
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric
from prestep.topologies.routes.router import Paths, summed


def spread(fabric: Fabric, src: str, dst: str, routing: Routing) -> tuple[Ints, Floats]:
    """Over NVLink to the GPU of the receiver's rail and out by its NIC, where that is the shorter way outside.

    Without PXN (`routing.pxn` false), or where the hosts' GPUs have no NVLink or are not equally many, the sender's own
    NIC and the spines carry it. Which GPU is on which rail its place in the host says.

    References
    ----------
    NVIDIA, Doubling all2all Performance with NCCL 2.12 (PXN, rail-optimised networks).
    """
    direct = fabric.routes(src, dst)
    relay = _relay(fabric, src, dst) if routing.pxn else src
    if relay == src:
        return summed(direct)
    first, second = fabric.routes(src, relay), fabric.routes(relay, dst)
    nvlink = all(
        set(fabric.links.kind[rows].tolist()) == {"nvlink"} for rows, _ in first
    )
    if not nvlink or _outside(fabric, second) >= _outside(fabric, direct):
        return summed(direct)
    return summed([*first, *second])


def _relay(fabric: Fabric, src: str, dst: str) -> str:
    """The GPU of the sender's host that has the receiver's place; the sender itself where there is none."""
    mine, its = (fabric.gpus_by_host.get(fabric.host_of(gpu), ()) for gpu in (src, dst))
    return (
        mine[its.index(dst)]
        if len(mine) == len(its) and dst in its and src in mine
        else src
    )


def _outside(fabric: Fabric, routes: Paths) -> int:
    """Links of the network on the way."""
    return max(
        sum(not fabric.host_of(str(end)) for end in fabric.links.dst[rows].tolist())
        for rows, _ in routes
    )
