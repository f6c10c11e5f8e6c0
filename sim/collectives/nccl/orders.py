"""Orders of GPUs that channels follow: rotations where all links are alike, else the links that are there.

Where GPUs meet in switches, one cycle for each GPU of a host lets every NIC and link carry its part. A mesh is a host
whose GPUs are joined by NVLinks without a switch: a DGX-1's GPU 3 has no link to GPU 4. There NCCL's search finds
orders of GPUs that keep to the links, and as many as they have room for (`prestep.sim.collectives.nccl.graphs`); rings
and chains of trees take turns over these.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from prestep.sim.collectives.assemble import Call, Load, once
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl.protocols import Work
from prestep.sim.collectives.plan import changed
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.collectives.nccl import searched

Orders = tuple[tuple[str, ...], ...]


@lru_cache(maxsize=256)
def cycles(group: Group, cross_nic: int = 2) -> tuple[tuple[str, ...], ...]:
    """Orders of all ranks; channels take turns over them.

    Channel k enters a host at GPU k and leaves at k - 1; with `cross_nic` 2 every other host is walked backwards, so
    that both ends of a wire between hosts are the same rail. With 0 the bytes reach the next host on the rail of its
    first GPU over NVLink (the caller relays them), with 1 they cross rails in the network. On one host a rotation
    changes nothing: one cycle; GPUs that share the host's only NIC make one order too: there is no rail to keep.
    """
    if turns(group) == 1:
        return (group.ranks,)
    swaps = cross_nic == 2
    return tuple(
        tuple(
            gpu
            for number, host in enumerate(group.hosts)
            for gpu in _walk(host, k, swaps and number % 2 == 1)
        )
        for k in range(turns(group))
    )


def turns(group: Group) -> int:
    """How many cycles there are."""
    return 1 if group.nodes == 1 or group.net.nics == 1 else group.largest


def _walk(host: tuple[str, ...], k: int, backwards: bool) -> tuple[str, ...]:
    start = k % len(host)
    order = host[start:] + host[:start]
    return order[::-1] if backwards else order


def neighbours(cycle: tuple[str, ...]) -> list[tuple[str, str]]:
    """Neighbours along a cycle; nothing for a single rank."""
    return (
        list(zip(cycle, cycle[1:] + cycle[:1], strict=True)) if len(cycle) > 1 else []
    )


def is_mesh(group: Group, fabric: Any) -> bool:
    """Whether the group is one host of three GPUs or more that NVLinks join without a switch."""
    return group.nodes == 1 and has_meshes(group, fabric)


def has_meshes(group: Group, fabric: Any) -> bool:
    """Whether hosts have three GPUs or more that NVLinks join without a switch."""
    if len(group.hosts[0]) < 3 or group.inside in ("shm", "net"):
        return False
    return paths.once(fabric, ("mesh", group), lambda: _is_mesh(group, fabric))


def _is_mesh(group: Group, fabric: Any) -> bool:
    here = fabric.positions(list(group.hosts[0]))
    inside = np.isin(fabric.ends[0], here) & (fabric.links.kind == "nvlink")
    ends = fabric.ends[1][inside]
    return bool(len(ends)) and all(fabric.nodes.kinds[at] == "gpu" for at in ends)


def mesh_rings(group: Group, fabric: Any, settings: Nccl) -> Orders:
    """Orders that a ring's channels take turns over; none elsewhere."""
    return _orders(group, fabric, settings, "ring")


def mesh_chains(group: Group, fabric: Any, settings: Nccl) -> Orders:
    """Orders of the chains that a tree's channels are on one host; none elsewhere."""
    return _orders(group, fabric, settings, "tree")


def _orders(group: Group, fabric: Any, settings: Nccl, pattern: str) -> Orders:
    if not is_mesh(group, fabric):
        return ()
    host = group.hosts[0]
    channels = getattr(searched.on_host(group, fabric, settings, host), pattern)
    return tuple(tuple(host[place] for place in order) for order in channels.orders)


def on_busiest_link(work: Work, call: Call, load: Load) -> tuple[Work, Call]:
    """Work and call whose link inside the host is the busiest, where a load is not alike on all links."""
    key = ("busiest", load, call.group)
    group, usage = once(call, key, lambda: _busiest(call, load))
    local = call.size * usage
    return changed(work, local_bytes=local), changed(call, group=group)


def _busiest(call: Call, load: Load) -> tuple[Group, float]:
    """The group with its busiest NVLink for all, and data bytes on that."""
    fabric, group, links, usage = call.fabric, call.group, load.links, load.data
    inside = np.flatnonzero(fabric.links.kind[links] == "nvlink")
    links, usage = links[inside], usage[inside]
    width, kind = fabric.links.bandwidth[links], "nvlink"
    wire = group.network.wire(call.constants, kind)
    at = int(np.argmax(usage / (width * wire)))
    busiest = replace(
        group,
        local=float(width[at]),
        local_kind=kind,
        local_latency=float(fabric.links.latency[links].max()),
    )
    return busiest, float(usage[at])
