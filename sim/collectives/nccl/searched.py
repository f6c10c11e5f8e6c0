"""What NCCL's search finds on the hosts of a communicator, remembered with the fabric.

Of a communicator's hosts with as many GPUs the first is searched. Of hosts that are made of the same parts one is
searched, before anybody looks for ways in them: what is found has no names in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl.graphs import BALANCED, NVLS, RING, Channels, compute
from prestep.sim.collectives.nccl.system import Parts, of_parts, parts_of
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths
from prestep.sim.costs.gpu_files import generation_of


@dataclass(frozen=True)
class Graphs:
    """The ring, the tree, and NVLink SHARP's heads (None where there are no NVSwitches for it)."""

    ring: Channels
    tree: Channels
    nvls: Channels | None


def every_host(group: Group, fabric: Any, settings: Nccl) -> list[Graphs]:
    """What was found on each host."""
    sizes = by_size(group, fabric, settings)
    return [sizes[len(host)] for host in group.hosts]


def by_size(group: Group, fabric: Any, settings: Nccl) -> dict[int, Graphs]:
    """What was found on hosts of each number of GPUs, in the order in which the group has them."""
    return {
        size: on_host(group, fabric, settings, host)
        for size, host in group.first_of_size.items()
    }


def on_host(group: Group, fabric: Any, settings: Nccl, host: tuple[str, ...]) -> Graphs:
    """What is found on one of the group's hosts."""
    how = (
        settings.cross_nic,
        settings.pxn_disable,
        settings.release,
        group.inside,
        group.outside,
        group.farthest,
        group.net.speed,
    )
    key = ("graphs", host, group.nodes > 1, how)
    return paths.once(fabric, key, lambda: _search(group, fabric, settings, host))


def _search(group: Group, fabric: Any, settings: Nccl, host: tuple[str, ...]) -> Graphs:
    kind = generation_of(fabric.gpu_model).at(settings.release)
    parts = parts_of(fabric, group, host, kind, not settings.pxn_disable)
    speeds = kind.net_speeds if "nic" in parts.kinds else kind.host_speeds
    most = 32 if settings.release >= (2, 25) else 16
    return _graphs(parts, kind.capability, speeds, settings.cross_nic, most)


# A pure function of values: a cluster has few kinds of hosts, and a sweep over host counts meets them again.
@lru_cache(maxsize=256)
def _graphs(
    parts: Parts, sm: int, speeds: tuple[float, ...], cross_nic: int, most: int
) -> Graphs:
    system = of_parts(parts)
    ring = compute(system, RING, sm, speeds, cross_nic, most=most)
    ring = ring if ring.count else _simple(ring, system.gpus, bool(system.nets))
    tree = compute(
        system, BALANCED, sm, speeds, cross_nic, least=ring.count, most=ring.count
    )
    tree = tree if tree.count else _simple(tree, system.gpus, bool(system.nets))
    switched = system.up and sm >= 90 and system.gpus > 1
    return Graphs(
        ring, tree, compute(system, NVLS, sm, speeds, cross_nic) if switched else None
    )


def _simple(nothing: Channels, gpus: int, nets: bool) -> Channels:
    """One channel in the order of the GPUs at 0.1 GB/s: what NCCL falls back to."""
    return Channels(
        nothing.pattern,
        0.1,
        0.1,
        9,
        9,
        orders=(tuple(range(gpus)),),
        nets=((0, 0),) if nets else (),
        least=nothing.least,
        most=nothing.most,
    )
