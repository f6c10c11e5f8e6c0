"""How the chains of every rank move bytes: as they were executed once, between the GPUs that this rank meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.cycle import Course, Cycle, Exchange
from prestep.sim.graph.opgraph import KERNEL, Chain, Comm, Groups, OpGraph
from prestep.sim.planning.chains import Repetition
from prestep.sim.planning.relocation import Relocation
from prestep.topologies.fabric import Fabric


def courses_of(
    graph: OpGraph,
    chains: Mapping[OpGraph, Repetition],
    fabric: Fabric,
    gpus: Sequence[str],
    plan: Callable[[Comm], Plan],
) -> dict[int, dict[int, Course]]:
    """How chains move bytes, by rank and the chain's index.

    Parameters
    ----------
    gpus
        The GPU of every rank.
    plan
        Plans a communication where it is not known from another place.
    """
    if not any(repetition.cycle is not None for repetition in chains.values()):
        return {}
    courses = dict[int, dict[int, Course]]()
    for program in graph.programs:
        groups = graph.moved.get(program.rank, {})
        met = _Met(fabric, gpus, plan, groups)
        kernels = np.unique(program.payload[program.kind == KERNEL]).tolist()
        courses[program.rank] = _courses_among(graph, kernels, chains, met)
    return courses


def _courses_among(
    graph: OpGraph,
    kernels: Sequence[int],
    chains: Mapping[OpGraph, Repetition],
    met: _Met,
) -> dict[int, Course]:
    """Of some kernels of the graph, those that are chains and move bytes."""
    courses = dict[int, Course]()
    for index in kernels:
        chain = graph.kernels[index]
        if not isinstance(chain, Chain) or chain.tail:
            continue
        repetition = chains[chain.graph]
        if repetition.cycle is None:
            continue
        course = Course(met.cycle(repetition.cycle), chain.times, repetition.last)
        if course.duration > 0:
            courses[index] = course
    return courses


@dataclass(frozen=True, eq=False)
class _Met:
    """The groups that a rank meets within its chains.

    Attributes
    ----------
    groups : mapping
        By those with which the chains were recorded.
    """

    fabric: Fabric
    gpus: Sequence[str]
    plan: Callable[[Comm], Plan]
    groups: Mapping[Groups, Groups]
    relocations: dict[Groups, Relocation] = field(default_factory=dict)
    cycles: dict[Cycle, Cycle] = field(default_factory=dict)

    def cycle(self, cycle: Cycle) -> Cycle:
        """A cycle whose exchanges are those of these groups."""
        if not self.groups:
            return cycle
        if cycle not in self.cycles:
            exchanges = tuple(map(self._exchange, cycle.exchanges))
            self.cycles[cycle] = replace(cycle, exchanges=exchanges)
        return self.cycles[cycle]

    def _exchange(self, exchange: Exchange) -> Exchange:
        here = exchange.comm.groups
        there = self.groups.get(here, here)
        if there == here:
            return exchange
        comm = replace(exchange.comm, groups=there)
        plan, bound = self._on_links(exchange.plan, here, comm), exchange.bound
        if bound >= 0:
            width = self.fabric.links.bandwidth[plan.links] / plan.usage
            bound = int(plan.links[width.argmin()])
        return replace(exchange, comm=comm, plan=plan, bound=bound)

    def _on_links(self, plan: Plan, here: Groups, comm: Comm) -> Plan:
        """The plan of a communication that was made for other groups, on the links of its own."""
        rows = None
        if len(here) == len(comm.groups):
            rows = self._relocation(here, comm.groups).rows(plan.links)
        if rows is None:
            other = self.plan(comm)
            return replace(plan, links=other.links, usage=other.usage, data=other.data)
        order = np.argsort(rows)
        return plan.on(rows[order], order)

    def _relocation(self, here: Groups, there: Groups) -> Relocation:
        if here not in self.relocations:
            pairs = {
                self.gpus[a]: self.gpus[b]
                for one, other in zip(here, there, strict=True)
                for a, b in zip(one, other, strict=True)
            }
            self.relocations[here] = Relocation(self.fabric, pairs)
        return self.relocations[here]
