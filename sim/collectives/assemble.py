"""A call of a collective, and the arithmetic from an algorithm's work to a plan, the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from prestep.sim.collectives import constants as files
from prestep.sim.collectives import machine
from prestep.sim.collectives.group import Group, group_of
from prestep.sim.collectives.nccl import protocols
from prestep.sim.collectives.plan import Idle, Plan, narrowest
from prestep.sim.collectives.settings import Nccl
from prestep.sim.collectives.wires import paths

Bytes = tuple[np.ndarray, np.ndarray]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Load:
    """Links that an algorithm's bytes cross and data bytes on each per payload byte: the same for all sizes."""

    links: np.ndarray
    data: np.ndarray


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a collective, which an algorithm turns into a `Plan`.

    Attributes
    ----------
    op, size, ranks
        As a plan has them; `ranks` in the caller's order: the first is the root.
    group : Group
        The communicator of the ranks.
    settings : Nccl
    constants : Constants
        How fast this machine carries it.
    proto : str
    channels : int
        Channels that the communicator has; an algorithm may use fewer of them.
    in_place : bool
        Each rank's part of an all-gather already lies in its output.
    """

    op: str
    size: float
    ranks: tuple[str, ...]
    fabric: Any
    group: Group
    settings: Nccl
    constants: files.Constants
    proto: str
    channels: int
    in_place: bool = False


def call_of(
    op: str,
    size: float,
    ranks: Sequence[str],
    fabric: Any,
    nccl: Nccl | None = None,
    proto: str = "Simple",
    channels: int = 24,
    constants: files.Constants | None = None,
    in_place: bool = False,
    group: Group | None = None,
) -> Call:
    """A call among `ranks` of a fabric, by default with the constants of its machine.

    Examples
    --------
    >>> from prestep.sim.collectives.algorithms import ring
    >>> from prestep.topologies import load_cluster
    >>> fabric = load_cluster("h200-host-4")
    >>> ring.plan(call_of("all_gather", 2.0**20, fabric.gpus, fabric)).algo
    'ring'
    """
    settings = nccl or Nccl()
    return Call(
        op,
        size,
        tuple(ranks),
        fabric,
        group or group_of(fabric, ranks, settings),
        settings,
        constants or machine.of(fabric),
        proto,
        channels,
        in_place,
    )


def once(call: Call, key: Any, make: Callable[[], T]) -> T:
    """What `make` returns, made once per key where the call has its machine's own constants."""
    own = call.constants is machine.of(call.fabric)
    return paths.once(call.fabric, key, make) if own else make()


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
    call: Call,
    work: protocols.Work,
    flows: list[tuple[str, str, float]] | Bytes | Load,
    *,
    algo: str,
    threads: int,
    between: float,
    channels: int | None = None,
) -> Plan:
    """The plan of a call's `work`.

    Parameters
    ----------
    flows
        (source, destination, data bytes per payload byte), or links and bytes on each.
    threads
        Of each CTA.
    between
        Seconds of a step between hosts, as NCCL's own tables have it.
    channels
        How many of the call's are used; default: all.
    """
    op, size, group = call.op, call.size, call.group
    proto, table = call.proto, call.constants
    channels = channels or call.channels
    pace = table.pace(algo, proto)
    delay = protocols.latency(work, group, between, proto, threads, pace, table)
    # On networks with a rendezvous both sides agree on a large message before it is sent.
    wire_bytes = work.step * protocols.WIRE[proto]
    agreed = group.network.agreed(proto, wire_bytes, channels)
    delay += work.remote_hops * (agreed + group.network.copied(proto, wire_bytes))
    idle = _idle(call, flows)
    moving = protocols.transfer(work, size, group, op, proto, pace, table)
    return Plan(
        op,
        size,
        group.ranks,
        algo,
        proto,
        channels,
        delay,
        idle.links,
        idle.usage,
        size / moving if moving > 0 else float("inf"),
        _evidence(group, pace, table),
        data=idle.data,
        idle=idle,
        hops=0.0 if proto == "Simple" else delay - pace.start,
    )


def _idle(call: Call, flows: list[tuple[str, str, float]] | Bytes | Load) -> Idle:
    """Links, and the bytes on each with flags and packet headers and without; what does not depend on the size once."""
    if not isinstance(flows, Load):
        return _crossed(call, flows)
    bytes_ = flows.links, flows.data
    found = once(call, ("idle", flows, call.proto), lambda: _crossed(call, bytes_))
    # Every plan has an array of its own: by it transfers of different sizes are told apart.
    return found._replace(usage=found.usage.view())


def _crossed(call: Call, flows: list[tuple[str, str, float]] | Bytes) -> Idle:
    """`_idle` of flows or links."""
    fabric, group = call.fabric, call.group
    if isinstance(flows, list):
        flows = paths.gather(fabric, group.expand(fabric, flows))
    links, data = flows
    wire = wires(links, fabric, lambda kind: group.network.wire(call.constants, kind))
    sent = data * (protocols.WIRE[call.proto] / wire)
    usage, bandwidth = on_bus(links, sent, group, fabric), fabric.links.bandwidth
    return Idle(links, usage, data, bandwidth, narrowest(bandwidth, links, usage))


def _evidence(group: Group, pace: files.Pace, table: files.Constants) -> str:
    """Constants were measured inside a host: between hosts, and through a host's memory, they are a guess."""
    if group.nodes > 1 or group.inside != "auto" or table.evidence == "guess":
        return "guess"
    return pace.evidence or table.evidence
