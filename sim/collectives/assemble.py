"""From an algorithm's work to a plan: the same arithmetic for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from prestep.sim.collectives import constants as files
from prestep.sim.collectives import machine
from prestep.sim.collectives.group import Group
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.wires import paths

Bytes = tuple[np.ndarray, np.ndarray]


def wires(links: np.ndarray, fabric: Any, wire: Callable[[str], float]) -> np.ndarray:
    """`wire` of every link's kind: data bytes per byte on it, what packet headers leave."""
    by_kind = np.array([wire(kind) for kind in fabric.links.kinds])
    return np.asarray(by_kind.take(fabric.links.kind_numbers.take(links)))


def on_bus(
    links: np.ndarray, usage: np.ndarray, group: Group, fabric: Any
) -> np.ndarray:
    """Bytes on links per payload byte, where a memory's count both ways: its bus carries reads and writes in turn.

    Examples
    --------
    >>> from prestep.sim.collectives.group import group_of
    >>> from prestep.sim.collectives.settings import Nccl
    >>> from prestep.topologies import load_cluster
    >>> fabric = load_cluster("aws-p5")
    >>> group = group_of(fabric, fabric.gpus, Nccl(p2p_disable=True))
    >>> there_and_back = fabric.links.of_kind("memory")[:2]
    >>> on_bus(there_and_back, np.array([1.0, 0.5]), group, fabric).tolist()
    [1.5, 1.5]
    """
    if not group.through_memory:
        return usage
    src, dst = (ends[links] for ends in fabric.ends)
    at = {ends: slot for slot, ends in enumerate(zip(src, dst, strict=True))}
    total = usage.copy()
    for slot in np.flatnonzero(fabric.links.kind[links] == "memory").tolist():
        back = at.get((dst[slot], src[slot]))
        total[slot] += 0.0 if back is None else usage[back]
    return total


def assemble(
    op: str,
    size: float,
    group: Group,
    fabric: Any,
    work: protocols.Work,
    flows: list[tuple[str, str, float]] | Bytes,
    *,
    algo: str,
    proto: str,
    channels: int,
    threads: int,
    between: float,
    table: files.Constants | None = None,
) -> Plan:
    """The plan of `work`; `flows` are (source, destination, data bytes per payload byte), or links and bytes.

    `between`: seconds of a step between hosts, as NCCL's own tables have it.
    """
    table = table or machine.of(fabric)
    pace = table.pace(algo, proto)
    delay = protocols.latency(work, group, between, proto, threads, pace, table)
    wire_bytes = work.step * protocols.WIRE[proto]
    delay += work.remote_hops * group.network.agreed(proto, wire_bytes, channels)
    links, usage, data = _usage(flows, fabric, group, table, proto)
    moving = protocols.transfer(work, size, group, op, proto, pace, table)
    return Plan(
        op,
        size,
        group.ranks,
        algo,
        proto,
        channels,
        delay,
        links,
        usage,
        size / moving if moving > 0 else float("inf"),
        _evidence(group, pace, table),
        data=data,
    )


def _usage(
    flows: list[tuple[str, str, float]] | Bytes,
    fabric: Any,
    group: Group,
    table: files.Constants,
    proto: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Links, and the bytes on each with flags and packet headers and without."""
    if isinstance(flows, list):
        flows = paths.gather(fabric, group.expand(fabric, flows))
    links, data = flows
    wire = wires(links, fabric, lambda kind: group.network.wire(table, kind))
    return (
        links,
        on_bus(links, data * (protocols.WIRE[proto] / wire), group, fabric),
        data,
    )


def _evidence(group: Group, pace: files.Pace, table: files.Constants) -> str:
    """Constants were measured inside a host: between hosts, and through a host's memory, they are a guess."""
    if group.nodes > 1 or group.inside != "auto" or table.evidence == "guess":
        return "guess"
    return pace.evidence or table.evidence
