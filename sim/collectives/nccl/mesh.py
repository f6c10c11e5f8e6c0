"""Hosts whose GPUs are joined by NVLinks without a switch: channels follow the links that are there.

A DGX-1's GPU 3 has no link to GPU 4. NCCL's search finds orders of GPUs that keep to the links, and as many as they
have room for (`prestep.sim.collectives.nccl.graphs`); rings and chains of trees take turns over these orders.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from prestep.sim.collectives.assemble import Bytes, Call
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import searched
from prestep.sim.collectives.nccl.protocols import Work
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths

Orders = tuple[tuple[str, ...], ...]


def joined(group: Group, fabric: Any) -> bool:
    """Whether the group is one host of three GPUs or more that NVLinks join without a switch."""
    if group.nodes > 1 or group.n < 3 or group.inside in ("shm", "net"):
        return False
    return paths.once(fabric, ("mesh", group), lambda: _joined(group, fabric))


def _joined(group: Group, fabric: Any) -> bool:
    here = fabric.positions(list(group.ranks))
    inside = np.isin(fabric.ends[0], here) & (fabric.links.kind == "nvlink")
    ends = fabric.ends[1][inside]
    return bool(len(ends)) and all(fabric.nodes.kinds[at] == "gpu" for at in ends)


def rings(group: Group, fabric: Any, wanted: Nccl) -> Orders:
    """Orders that a ring's channels take turns over; none elsewhere."""
    return _orders(group, fabric, wanted, "ring")


def chains(group: Group, fabric: Any, wanted: Nccl) -> Orders:
    """Orders of the chains that a tree's channels are on one host; none elsewhere."""
    return _orders(group, fabric, wanted, "tree")


def _orders(group: Group, fabric: Any, wanted: Nccl, pattern: str) -> Orders:
    if not joined(group, fabric):
        return ()
    host = group.hosts[0]
    found = getattr(searched.on_host(group, fabric, wanted, host), pattern)
    return tuple(tuple(host[place] for place in order) for order in found.orders)


def on_links(work: Work, call: Call, flows: Bytes) -> tuple[Work, Call]:
    """Work and call whose link inside the host is the busiest of the flows, which do not load all links alike.

    `flows`: links, and bytes on each per payload byte.
    """
    fabric, group = call.fabric, call.group
    links, usage = flows
    width, kinds = fabric.links.bandwidth[links], fabric.links.kind[links]
    wire = np.array([group.network.wire(call.constants, kind) for kind in kinds])
    at = int(np.argmax(usage / (width * wire)))
    busiest = replace(
        group,
        local=float(width[at]),
        local_kind=str(kinds[at]),
        local_latency=float(fabric.links.latency[links].max()),
    )
    local = call.size * float(usage[at])
    return replace(work, local_bytes=local), replace(call, group=busiest)
