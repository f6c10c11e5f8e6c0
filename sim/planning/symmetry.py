"""Which ranks of a run differ from the others: by their GPU, by what [faults] says, by links of their host."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Sequence

import numpy as np

from sim.costs.changed import Speed
from sim.planning.fleet import Fleet
from topologies.fabric import Fabric
from workloads.job.faults import Faults
from workloads.lowered import Unlike

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
    """Which GPU is the slowest, roughly: arithmetic goes with the root of what may be drawn."""
    limit = math.sqrt(min(1.0, speed.power_limit))
    return max(1.0 / (speed.flops * speed.clock * limit), 1.0 / speed.hbm_bandwidth)


def _changed_hosts(fabric: Fabric) -> dict[str, frozenset[Hashable]]:
    """What was changed of each host's links, and of those of the switches it hangs on; names without the host's."""
    by_host: dict[str, set[Hashable]] = {}
    by_switch: dict[int, set[Hashable]] = {}
    rows = _changed_rows(fabric)
    for a, b, width in zip(*_ends(fabric, rows), _widths(fabric, rows), strict=True):
        hosts = {fabric.nodes.hosts[a], fabric.nodes.hosts[b]} - {""}
        for host in hosts:
            mark = _bare_name(fabric, a), _bare_name(fabric, b), width
            by_host.setdefault(host, set()).add(mark)
        for switch in () if hosts else (a, b):
            by_switch.setdefault(switch, set()).add(width)
    for switch, host in _hung_on(fabric, by_switch):
        by_host.setdefault(host, set()).update(by_switch[switch])
    return {host: frozenset(marks) for host, marks in by_host.items()}


def _widths(fabric: Fabric, rows: list[int]) -> Iterator[tuple[str, float]]:
    """What tells changed links with the same ends apart: kind and bandwidth."""
    links = fabric.links
    return zip(links.kind[rows].tolist(), links.bandwidth[rows].tolist(), strict=True)


def _changed_rows(fabric: Fabric) -> list[int]:
    """Links that a what-if has changed."""
    sources = set(fabric.links.source.tolist())
    changed = [source for source in sources if source.startswith(CHANGED)]
    if not changed:
        return []
    rows: list[int] = np.flatnonzero(
        np.isin(fabric.links.source.astype(object), changed)
    ).tolist()
    return rows


def _ends(fabric: Fabric, rows: list[int]) -> tuple[list[int], list[int]]:
    src, dst = fabric.ends
    return src[rows].tolist(), dst[rows].tolist()


def _bare_name(fabric: Fabric, node: int) -> str:
    """A node's name without its host's; the kind of one that is outside of hosts."""
    nodes = fabric.nodes
    inside = nodes.hosts[node]
    return nodes.names[node].rpartition("/")[2] if inside else nodes.kinds[node]


def _hung_on(fabric: Fabric, switches: Collection[int]) -> list[tuple[int, str]]:
    """Every link from one of some switches to a host: the switch and the host."""
    if not switches:
        return []
    rows = np.flatnonzero(np.isin(fabric.ends[0], list(switches))).tolist()
    ends = zip(*_ends(fabric, rows), strict=True)
    pairs = [(switch, fabric.nodes.hosts[node]) for switch, node in ends]
    return [(switch, host) for switch, host in pairs if host]
