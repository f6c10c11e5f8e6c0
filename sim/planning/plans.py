"""How the communications of a step go: each is planned once, for all GPUs that lie alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from operator import attrgetter

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.planner import plan_collective
from prestep.sim.collectives.wires import paths
from prestep.sim.graph.opgraph import Comm
from prestep.sim.planning import host_memory
from prestep.sim.planning.job import Machine
from prestep.topologies.core.links import Ints, compact
from prestep.topologies.fabric import Fabric
from prestep.topologies.routes.symmetry import Symmetry
from prestep.workloads.lowered import Layout

# What the plan of a communication depends on: not on who is simulated, nor on who begins.
_TRAITS = attrgetter(
    *(one.name for one in fields(Comm) if one.name not in ("arrivals", "sender"))
)

Gpus = Sequence[Sequence[str]]  # of every copy: the GPUs of its communicator


def plans_of(
    layout: Layout, machine: Machine, comms: Sequence[Comm]
) -> tuple[Plan, ...]:
    """How every communication goes; those that are alike have one plan."""
    made: dict[tuple[object, ...], Plan] = {}
    plans = []
    for comm in comms:
        traits = _TRAITS(comm)
        plan = made.get(traits)
        if plan is None:
            plan = made[traits] = plan_of(layout, machine, comm)
        plans.append(plan)
    return tuple(plans)


def plan_of(layout: Layout, machine: Machine, comm: Comm) -> Plan:
    """How a communication goes, with all its copies."""
    merged = _Call(machine, comm).plan(
        [_communicator(layout, machine, comm, group) for group in comm.groups]
    )
    if comm.copies > 1:
        merged = replace(merged, copies=comm.copies)
    return replace(merged, channels=0) if comm.copied else merged


class _Call:
    """A communication, whoever takes part: it is planned for the GPUs of all its copies, of a host's, or of one.

    Copies lie alike as well: all those of a host, each on its own, or each on its rail.
    """

    def __init__(self, machine: Machine, comm: Comm) -> None:
        self.fabric, self.comm = machine.fabric, comm
        # User buffers (Transformer Engine's) are no communicator's.
        self.nccl = machine.nccl.of("" if comm.copied else comm.axis)
        self.on_host = machine.copies if comm.op in host_memory.OPS else None
        traits = comm.op, comm.size, comm.in_place, comm.tokens
        self.traits = (*traits, self.nccl, self.on_host)

    def plan(self, communicators: Gpus) -> Plan:
        """Of all copies together."""
        return self._once(communicators, partial(self._of_hosts, communicators))

    def _once(self, communicators: Gpus, make: Callable[[], Plan]) -> Plan:
        return planned_once(self.fabric, self.traits, communicators, make)

    def _of_hosts(self, communicators: Gpus) -> Plan:
        # Communicators of few ranks ask for one route after the other.
        few = [gpus for gpus in communicators if len(gpus) <= paths.MANY]
        self.fabric.prefetch([pair for gpus in few for pair in _neighbours(gpus)])
        hosts = _by_host(self.fabric, communicators)
        return _merged(
            [self._once(one, partial(self._of_copies, one)) for one in hosts]
        )

    def _of_copies(self, communicators: Gpus) -> Plan:
        return _merged(
            [self._once([gpus], partial(self._of_one, gpus)) for gpus in communicators]
        )

    def _of_one(self, gpus: Sequence[str]) -> Plan:
        """Of one communicator."""
        comm, names, fabric = self.comm, tuple(gpus), self.fabric
        if self.on_host is not None:
            return host_memory.plan(comm.op, comm.size, names[0], self.on_host, fabric)
        return plan_collective(
            comm.op, comm.size, names, fabric, self.nccl, comm.in_place, comm.tokens
        )


def _neighbours(gpus: Sequence[str]) -> list[tuple[str, str]]:
    """Each GPU with the next one, round and round."""
    return list(zip(gpus, (*gpus[1:], gpus[0]), strict=True))


def _communicator(
    layout: Layout, machine: Machine, comm: Comm, group: tuple[int, ...]
) -> tuple[str, ...]:
    """GPUs of one of the copies of a communication; those at rest come last."""
    # NCCL chooses the channels of a transfer by its communicator: who is idle in it is named after the pair.
    idle = (
        [r for r in layout.pipeline(group[0]) if r not in group]
        if comm.axis == "pp"
        else []
    )
    return tuple(machine.gpus[rank] for rank in (*group, *idle))


def _merged(plans: Sequence[Plan]) -> Plan:
    """One plan for copies that run at the same moment: their usage adds up on the links, and the slowest counts.

    Copies differ where ranks are not placed regularly; whoever waits for one of them waits for all.
    """
    first = plans[0]
    if len(plans) == 1:
        return first
    links, at = compact(np.concatenate([p.links for p in plans]))
    usage, data = (
        np.bincount(at, np.concatenate(amounts), len(links))
        for amounts in zip(*((p.usage, p.data_usage) for p in plans), strict=True)
    )
    return replace(
        first,
        links=links,
        usage=usage,
        data=data,
        latency=max(p.latency for p in plans),
        hops=max(p.hops for p in plans),
        rate_cap=min(p.rate_cap for p in plans),
    )


# -- GPUs that lie alike ---------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Planned:
    """A plan, and the positions of the GPUs for which it was made."""

    nodes: Ints
    plan: Plan


@dataclass(frozen=True, eq=False)
class _Memory:
    """What has been planned on a fabric: by what it is and how the GPUs lie; and how those lie."""

    first: dict[Hashable, _Planned] = field(default_factory=dict)
    marks: dict[tuple[tuple[str, ...], ...], tuple[Ints, bytes | None]] = field(
        default_factory=dict
    )


def planned_once(
    fabric: Fabric, what: Hashable, gpus: Gpus, make: Callable[[], Plan]
) -> Plan:
    """What `make` returns, or the plan that it returned for other GPUs, moved to these.

    Parameters
    ----------
    what
        All that the plan depends on beside the fabric and the GPUs.
    """
    symmetry = fabric.symmetry
    if symmetry is None:
        return make()
    memory = paths.once(fabric, ("plans of GPUs that lie alike",), _Memory)
    nodes, mark = _marked(fabric, symmetry, memory, gpus)
    if mark is None:
        return make()
    key = (what, tuple(map(len, gpus)), mark)
    first = memory.first.get(key)
    moved = _moved(symmetry, first, nodes, gpus) if first else None
    if moved is not None:
        return moved
    plan = make()
    if first is None and symmetry.settled(nodes):
        memory.first[key] = _Planned(nodes, plan)
    return plan


def _marked(
    fabric: Fabric, symmetry: Symmetry, memory: _Memory, gpus: Gpus
) -> tuple[Ints, bytes | None]:
    """Positions of the GPUs, and how they lie."""
    key = tuple(map(tuple, gpus))
    if key not in memory.marks:
        nodes = fabric.positions(list(chain.from_iterable(gpus)))
        memory.marks[key] = nodes, symmetry.mark(nodes)
    return memory.marks[key]


def _moved(symmetry: Symmetry, first: _Planned, nodes: Ints, gpus: Gpus) -> Plan | None:
    """The plan on the links of GPUs that lie like those for which it was made; None where a link has no image."""
    plan = first.plan
    rows = symmetry.rows(plan.links, first.nodes, nodes)
    if rows is None:
        return None
    order = np.argsort(rows)
    return plan.on(rows[order], order, ranks=tuple(gpus[0]))


def _by_host(fabric: Fabric, communicators: Gpus) -> list[list[Sequence[str]]]:
    """Communicators in their order, those next to each other that lie on one host together."""
    hosts: list[list[Sequence[str]]] = []
    before = ""
    for gpus in communicators:
        host = fabric.host_of(gpus[0])
        if any(fabric.host_of(gpu) != host for gpu in gpus):
            host = ""
        if host and host == before:
            hosts[-1].append(gpus)
        else:
            hosts.append([gpus])
        before = host
    return hosts
