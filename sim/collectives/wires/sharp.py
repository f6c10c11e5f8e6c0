"""SHARP in the network: switches that add up what hosts send them (CollNet in NCCL), and who may use it.

NCCL src/transport/coll_net.cc. Every head, a GPU with a NIC, sends its slice up and receives the total.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prestep.sim.collectives.group import Group
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import transport
from prestep.sim.graph.opgraph import by_link

MAX_LOCAL = 8


def heads(group: Group) -> int:
    """Slices of the data: one per GPU with a NIC of its own."""
    return max(1, min(group.net.nics, int(group.per_node)))


def wires(fabric: Any, group: Group, slices: int) -> tuple[np.ndarray, np.ndarray]:
    """The NICs' links up to the first switch and back; above it, one stream of each slice per link."""
    parts = []
    for at, host in enumerate(group.hosts):
        other = group.hosts[(at + 1) % group.nodes]
        for k in range(slices):
            links, share = transport.between(
                fabric, host[k], other[k % len(other)], group.outside
            )
            parts.append((links, share / slices))
    return by_link(parts)


def missing(group: Group, fabric: Any, settings: Nccl) -> str | None:
    """What NCCL lacks on `group` to let the network add up, or None."""
    if group.nodes < 2:
        return "CollNet needs at least two hosts"
    if not settings.collnet:
        return "CollNet is off, as in NCCL unless NCCL_COLLNET_ENABLE=1: [nccl] collnet = true"
    if group.largest > MAX_LOCAL:
        return f"CollNet takes at most {MAX_LOCAL} GPUs per host"
    if not fabric.cluster_facts.sharp:
        return f"no SHARP in the switches of {fabric.name} (sharp in its cluster file)"
    return None


def without(fabric: Any, settings: Nccl) -> str | None:
    """What to say where CollNet was asked for and no switch can do it; None: it can, or nobody asked."""
    if not settings.collnet or fabric.cluster_facts.sharp:
        return None
    return (
        f"nccl.collnet = true changes nothing: the cluster file of {fabric.name} does not say that its network's "
        "switches reduce. Where they do (InfiniBand with SHARP), write sharp = 1 there; else leave collnet out"
    )
