"""Which ranks of a run differ from the others: by their GPU, by what [faults] says, by links of their host."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from prestep.sim.costs.changed import Speed
from prestep.sim.planning.fleet import Fleet
from prestep.topologies.core.links import Ints, Nodes
from prestep.topologies.fabric import Fabric
from prestep.workloads.job.faults import Faults
from prestep.workloads.lowered import Unlike

CHANGED = "cluster.set: "  # how the source of a link begins that a what-if has changed (topologies.edit.overrides)


def unlike(fabric: Fabric, fleet: Fleet, faults: Faults, gpus: Sequence[str]) -> Unlike:
    """What tells the ranks on these GPUs apart; nothing where all are alike."""
    hosts = _changed_hosts(fabric)
    slow = faults.slow_rank
    if not (hosts or fleet.speeds or slow is not None):
        return Unlike()
    marks: list[Hashable] = []
    slowness: dict[int, float] = {}
    for rank, gpu in enumerate(gpus):
        speed = fleet.speeds[rank] if fleet.speeds else None
        factor = (_slowness(speed) if speed else 1.0) * (
            faults.slow_factor if rank == slow else 1.0
        )
        if factor != 1.0 or rank == slow:
            slowness[rank] = (
                max(factor, 1.0 + 1e-9)
                if rank == slow and faults.slow_per_layer
                else factor
            )
        marks.append(
            (speed, rank == slow, hosts.get(fabric.host_of(gpu)) if hosts else None)
        )
    return Unlike(tuple(marks) if len(set(marks)) > 1 else (), slowness)


def _slowness(speed: Speed) -> float:
    """Which GPU is the slowest, roughly: arithmetic goes with the root of what may be drawn.

    As if each bounded half of the time: a GPU that is slower in one and alike in the other is the slower one.
    """
    limit = math.sqrt(min(1.0, speed.power_limit))
    arithmetic = 1.0 / (speed.flops * speed.clock * limit)
    return (arithmetic + 1.0 / speed.hbm_bandwidth) / 2


def _changed_hosts(fabric: Fabric) -> dict[str, Hashable]:
    """By host, what was changed of its links, and of those of the switches it hangs on: equal where that is alike."""
    rows = _changed_rows(fabric)
    if not len(rows):
        return {}
    nodes = fabric.nodes
    src, dst = (ends[rows] for ends in fabric.ends)
    speed = _speeds(fabric, rows)
    size = int(speed.max()) + 1
    link = (nodes.place[src] * len(nodes) + nodes.place[dst]) * size + speed
    one, other = nodes.host_at[src], nodes.host_at[dst]
    beyond = one != other  # a link within a host is counted once
    between = np.maximum(one, other) < 0
    hung, by = _hung_on(fabric, src[between], dst[between], speed[between])
    hosts = np.concatenate([one, other[beyond], hung])
    marks = np.concatenate([link, link[beyond], -1 - by])
    return _by_host(nodes, hosts[hosts >= 0], marks[hosts >= 0])


def _by_host(nodes: Nodes, hosts: Ints, marks: Ints) -> dict[str, Hashable]:
    """The distinct marks of every host that has one."""
    different, number = np.unique(marks, return_inverse=True)
    pairs = np.unique(hosts * len(different) + number.ravel())
    at, mark = np.divmod(pairs, max(1, len(different)))
    first = np.flatnonzero(np.diff(at, prepend=-1))
    names = [nodes.host_names[host] for host in at[first].tolist()]
    sets = [part.tobytes() for part in np.split(mark, first[1:])]
    return dict(zip(names, sets, strict=len(names) > 0))


def _speeds(fabric: Fabric, rows: Ints) -> Ints:
    """A number for each of some links, equal for those of one kind and bandwidth."""
    links = fabric.links
    widths, width = np.unique(links.bandwidth[rows], return_inverse=True)
    kind = np.zeros(len(rows), dtype=np.int64)
    for at, name in enumerate(links.kinds):
        kind[links.kind[rows] == name] = at
    numbers: Ints = kind * len(widths) + width.ravel()
    return numbers


def _changed_rows(fabric: Fabric) -> Ints:
    """Links that a what-if has changed."""
    source = fabric.links.source
    changed = [text for text in set(source.tolist()) if text.startswith(CHANGED)]
    if not changed:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(np.isin(source.astype(object), changed))


def _hung_on(fabric: Fabric, src: Ints, dst: Ints, speed: Ints) -> tuple[Ints, Ints]:
    """Hosts at the switches of some links between switches, and the numbers of these links; one for one."""
    away, into = fabric.ends
    hosts = [np.empty((2, 0), dtype=np.int64)]
    for number in np.unique(speed).tolist():
        switches = np.concatenate([src[speed == number], dst[speed == number]])
        found = fabric.nodes.host_at[into[np.isin(away, switches)]]
        hosts.append(np.stack([found, np.full(len(found), number)]))
    table = np.concatenate(hosts, axis=1)
    return table[0], table[1]
