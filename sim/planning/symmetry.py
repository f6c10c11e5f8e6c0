"""Which ranks of a run differ from the others: by their GPU, by what [faults] says, by links of their host."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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
    return max(1.0 / (speed.flops * speed.clock), 1.0 / speed.hbm_bandwidth)


def _changed_hosts(fabric: Fabric) -> dict[str, frozenset[Hashable]]:
    """What was changed of each host's links, and of those of the switches it hangs on; names without the host's."""
    links, nodes = fabric.links, fabric.nodes
    changed = [
        source for source in set(links.source.tolist()) if source.startswith(CHANGED)
    ]
    if not changed:
        return {}
    rows = np.flatnonzero(np.isin(links.source.astype(object), changed))
    found: dict[str, set[Hashable]] = {}
    src, dst = fabric.ends
    switches: dict[int, set[str]] = {}
    for row, a, b in zip(
        rows.tolist(), src[rows].tolist(), dst[rows].tolist(), strict=True
    ):
        ends = tuple(
            nodes.names[n].rpartition("/")[2] if nodes.hosts[n] else nodes.kinds[n]
            for n in (a, b)
        )
        mark = (*ends, str(links.kind[row]), float(links.bandwidth[row]))
        for host in {nodes.hosts[a], nodes.hosts[b]} - {""}:
            found.setdefault(host, set()).add(mark)
        if not nodes.hosts[a] and not nodes.hosts[b]:
            for node in (a, b):
                switches.setdefault(node, set()).add(
                    f"{links.kind[row]} {links.bandwidth[row]}"
                )
    if switches:
        for row in np.flatnonzero(np.isin(src, list(switches))).tolist():
            if host := nodes.hosts[int(dst[row])]:
                found.setdefault(host, set()).update(switches[int(src[row])])
    return {host: frozenset(marks) for host, marks in found.items()}
