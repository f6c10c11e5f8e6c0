"""Chains: the graph that each repeats, executed once by itself, and how it moves bytes on every rank.

A layer of Megatron's is recorded once and stands in the step as so many repetitions. Executed twice beside nothing
else, the second time shows how long one repetition takes and, where it exchanges something, its `Cycle`: what begins
when, and what waits for what. Every rank repeats that between the GPUs that it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.engine import execute
from prestep.sim.engine.exchange_timeline import (
    Cycle,
    Exchange,
    ExchangeTimeline,
    Piece,
)
from prestep.sim.engine.execution import Run, Timed
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import (
    COMM,
    KERNEL,
    Chain,
    Comm,
    Groups,
    OpGraph,
    Program,
)


@dataclass(frozen=True, eq=False)
class Repetition:
    """One repetition of a chain's graph beside nothing else.

    Attributes
    ----------
    timed : Timed
        The graph with its own durations and plans.
    period : float
        Seconds from one repetition's end to the next one's.
    last : float
        Seconds of its last kernel.
    cycle : Cycle or None
        What it moves over links, and when; None: nothing.
    run : Run or None
        Two repetitions, the second as it recurs; None: there is nothing to run.
    """

    timed: Timed
    period: float
    last: float
    cycle: Cycle | None = None
    run: Run | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """How the chain's own communications go."""
        return self.timed.plans

    @property
    def kernels(self) -> list[tuple[int, float]]:
        """(index into the chain's own kernels, seconds) of every kernel in one repetition."""
        program = self.timed.graph.programs[0]
        played = program.payload[program.kind == KERNEL]
        return list(
            zip(played.tolist(), self.timed.durations[played].tolist(), strict=True)
        )

    @property
    def waiting(self) -> float:
        """Share of its time in which computation waits for its own exchanges."""
        if self.cycle is None:
            return 0.0
        return min(1.0, sum(self.cycle.exposed.values()) / self.period)

    @property
    def grain(self) -> float:
        """Seconds until the kernel that runs at a random moment of a chain ends: long ones are met more often."""
        times = np.array([time for _, time in self.kernels])
        return float((times**2).sum() / (2 * times.sum())) if times.sum() > 0 else 0.0

    def duration(self, chain: Chain) -> float:
        """Seconds of one of a chain's two kernels."""
        return (
            self.last if chain.tail else max(0.0, chain.times * self.period - self.last)
        )

    def slowdown(self, channels: int) -> float:
        """Factor on a chain beside communication: its kernels by their time; what it communicates stays."""
        total, longer = 0.0, 0.0
        factors: dict[int, float] = {}
        for index, time in self.kernels:
            if index not in factors:
                factors[index] = self.timed.slowdown(index, channels)
            total += time
            longer += time * (factors[index] - 1.0)
        period = max(self.period, total)
        return 1.0 + longer / period if period > 0 else 1.0

    def constituents(self) -> Iterator[tuple[Kernel | Chain, float]]:
        """(kernel, share of the chain's time); the rest is communication and gaps."""
        for index, time in self.kernels:
            yield self.timed.graph.kernels[index], time / (self.period or 1.0)


def repetition(timed: Timed) -> Repetition:
    """Executes a chain's graph twice: the second time has what the first one leaves behind."""
    program = timed.graph.programs[0]
    if not len(program):
        return Repetition(timed, 0.0, 0.0)
    run = execute(timed, 2)
    kernels = np.flatnonzero(program.kind == KERNEL)
    at = kernels[-1] if len(kernels) else -1
    last = float(run.end[0][1][at] - run.start[0][1][at])
    period = float(run.end[0][1].max()) - float(run.end[0][0].max())
    return Repetition(timed, period, min(last, period), cycle_of(timed, run), run)


# -- what a repetition exchanges ------------------------------------------------------------------
def cycle_of(timed: Timed, run: Run) -> Cycle | None:
    """The second repetition of a chain's graph that was executed twice; None where it moves nothing over links."""
    program = timed.graph.programs[0]
    if not (program.kind == COMM).any():
        return None
    reading = _Reading(timed, run)
    exchanges = reading.exchanges()
    if not any(len(exchange.plan.links) for exchange in exchanges):
        return None
    return Cycle(tuple(reading.pieces()), tuple(exchanges), reading.period)


class _Reading:
    """A repetition that was executed, with its kernels and communications in the order in which they began."""

    def __init__(self, timed: Timed, run: Run) -> None:
        self.timed, self.program = timed, timed.graph.programs[0]
        origin = self._begin(run)
        self.period = float(run.end[0][1].max() - run.end[0][0].max())
        self.start = run.start[0][1] - origin
        self.end = run.end[0][1] - origin
        self.bounds = _bounds(run)
        self.kernels = _in_order(self.program, KERNEL, self.start)
        self.comms = _in_order(self.program, COMM, self.start)
        self.place, self.number = _places(self.kernels), _places(self.comms)
        # Communications that each kernel waits for, or a kernel before it: how many of them in their order.
        self.awaited = _rising(self._awaited(op) for op in self.kernels)
        self.after = _rising(self._after(op) for op in self.comms)

    def _begin(self, run: Run) -> float:
        """When the first repetition's last kernel ended, or its last exchange where it has no kernel."""
        computes = self.program.kind == KERNEL
        ends = run.end[0][0][computes if computes.any() else slice(None)]
        return float(ends.max())

    def _awaited(self, op: int) -> int:
        deps = self.program.deps[op]
        return max((self.number[d] + 1 for d in deps if d in self.number), default=0)

    def _after(self, op: int) -> int:
        deps = self.program.deps[op]
        return max((self.place[d] + 1 for d in deps if d in self.place), default=0)

    @property
    def _marks(self) -> list[int]:
        """Kernels before which a piece begins, ascending, and their number."""
        begins = {0, *self.after}
        before = 0
        for at, awaited in enumerate(self.awaited):
            if awaited > before:
                begins.add(at)
            before = awaited
        return sorted({*begins, len(self.kernels)})

    def pieces(self) -> Iterator[Piece]:
        """Computation between marks; its seconds do not count those in which it waits."""
        now, marks = 0.0, self._marks
        for first, last in pairwise(marks):
            ended = self._ended(self.awaited[first])
            begin, length = max(now, ended), 0.0
            for at in range(first, last):
                end = float(self.end[self.kernels[at]])
                length += max(0.0, end - max(now, ended))
                now = max(now, end)
            yield Piece(begin, begin + length, self.awaited[first])
        yield from self._rest(now)

    def _rest(self, now: float) -> Iterator[Piece]:
        """What lies between the last kernel and the repetition's end: exchanges, and pauses beside later ones."""
        ends = [self.end[op] for op in self.comms if self.end[op] <= self.period]
        begin = max(now, float(ends[-1])) if ends else now
        if self.period > begin:
            yield Piece(begin, self.period, len(ends))

    def _ended(self, exchanges: int) -> float:
        """When so many exchanges had ended."""
        return float(self.end[self.comms[exchanges - 1]]) if exchanges else 0.0

    def exchanges(self) -> list[Exchange]:
        """Every communication in its order."""
        marks, exchanges = self._marks, list[Exchange]()
        for at, op in enumerate(self.comms):
            after = self.after[at]
            computed = float(self.end[self.kernels[after - 1]]) if after else 0.0
            free = max(computed, self._ended(at))
            exchanges.append(self._exchange(op, marks.index(after), free))
        return exchanges

    def _exchange(self, op: int, after: int, free: float) -> Exchange:
        """The communication of operation `op`, which could begin at `free` s."""
        (part,) = self.program.parts[int(self.program.payload[op])]
        plan, end = self.timed.plans[part], float(self.end[op])
        moves = min(end, float(self.start[op]) + plan.latency)
        rate = plan.size / (end - moves) if end > moves else plan.rate_cap
        idle = replace(plan, rate_cap=rate, buffered=0.0)
        bound = self.bounds.get(id(plan.usage), -1)
        comm, delay = self.timed.graph.comms[part], max(0.0, moves - free)
        return Exchange(idle, comm, after, delay, moves, end, bound)


def _places(ops: Sequence[int]) -> dict[int, int]:
    """Where each operation stands among others of its kind."""
    return {op: at for at, op in enumerate(ops)}


def _in_order(program: Program, kind: int, start: np.ndarray) -> list[int]:
    """Operations of a kind in the order in which they began."""
    ops = np.flatnonzero(program.kind == kind)
    order: list[int] = ops[np.argsort(start[ops], kind="stable")].tolist()
    return order


def _rising(numbers: Iterator[int]) -> list[int]:
    """The highest so far."""
    rising, highest = list[int](), 0
    for number in numbers:
        highest = max(highest, number)
        rising.append(highest)
    return rising


def _bounds(run: Run) -> dict[int, int]:
    """The link that held transfers of each shape back last; -1: none."""
    traffic = run.traffic
    rows, _, _ = traffic.segments()
    plans = [traffic.plans[a] for a in traffic.activity[rows].tolist()]
    bounds = traffic.bound[rows].tolist()
    return {id(plan.usage): bound for plan, bound in zip(plans, bounds, strict=True)}


# -- between whom a rank exchanges it --------------------------------------------------------------
def timelines_of(
    graph: OpGraph,
    chains: Mapping[OpGraph, Repetition],
    bandwidth: np.ndarray,
    plan: Callable[[Comm], Plan],
) -> dict[int, dict[int, ExchangeTimeline]]:
    """How chains move bytes, by rank and the chain's index.

    Parameters
    ----------
    bandwidth
        Bytes/s of every link.
    plan
        Plans a communication.
    """
    moving = {one: chain for one, chain in chains.items() if chain.cycle is not None}
    if not moving:
        return {}
    return {
        program.rank: _timelines(graph, program, moving, bandwidth, plan)
        for program in graph.programs
    }


def _timelines(
    graph: OpGraph,
    program: Program,
    chains: Mapping[OpGraph, Repetition],
    bandwidth: np.ndarray,
    plan: Callable[[Comm], Plan],
) -> dict[int, ExchangeTimeline]:
    """Those of a program's kernels that are chains and move bytes, by index."""
    groups = graph.moved.get(program.rank, {})
    cycles = dict[OpGraph, Cycle]()
    timelines = dict[int, ExchangeTimeline]()
    for index in np.unique(program.payload[program.kind == KERNEL]).tolist():
        chain = graph.kernels[index]
        # A chain's second kernel is its last one, which moves nothing.
        if not isinstance(chain, Chain) or chain.tail or chain.graph not in chains:
            continue
        recorded = chains[chain.graph]
        if chain.graph not in cycles and recorded.cycle is not None:
            cycles[chain.graph] = _among(groups, recorded.cycle, bandwidth, plan)
        timeline = ExchangeTimeline(cycles[chain.graph], chain.times, recorded.last)
        if timeline.duration > 0:
            timelines[index] = timeline
    return timelines


def _among(
    groups: Mapping[Groups, Groups],
    cycle: Cycle,
    bandwidth: np.ndarray,
    plan: Callable[[Comm], Plan],
) -> Cycle:
    """A cycle whose exchanges are those of other groups: `groups`, by those with which it was recorded."""
    if not groups:
        return cycle
    exchanges = []
    for exchange in cycle.exchanges:
        there = groups.get(exchange.comm.groups, exchange.comm.groups)
        if there != exchange.comm.groups:
            comm = replace(exchange.comm, groups=there)
            exchange = _on_links(exchange, comm, plan(comm), bandwidth)
        exchanges.append(exchange)
    return replace(cycle, exchanges=tuple(exchanges))


def _on_links(
    exchange: Exchange, comm: Comm, plan: Plan, bandwidth: np.ndarray
) -> Exchange:
    """An exchange that takes as long, on the links of another plan for it."""
    links, usage, bound = plan.links, plan.usage, exchange.bound
    if bound >= 0:
        bound = int(links[(bandwidth[links] / usage).argmin()])
    moved = replace(exchange.plan, links=links, usage=usage, data=plan.data)
    return replace(exchange, comm=comm, plan=moved, bound=bound)
