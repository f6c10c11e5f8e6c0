"""Collectives of other simulators as activities of ours, and small programs of them on the engine that predicts steps.

A peer plays a collective message by message. Here its steps are added up: the bytes that cross each link, and the
latencies of one step after the other. What shares a link with it shares the rate (`prestep.sim.engine.fluid`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.engine import Timed, execute
from prestep.sim.engine.execution import Run
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import COMM, KERNEL, Comm, OpGraph, Program
from prestep.topologies.fabric import Fabric


@dataclass(frozen=True)
class Wire:
    """What a message costs beside its bytes on links.

    Attributes
    ----------
    start : float
        Seconds of the sender per message.
    packet : float
        Bytes that a switch takes in before it passes them on; 0: cut-through.
    header : float
        Bytes on the wire per byte of data.
    """

    start: float = 0.0
    packet: float = 0.0
    header: float = 1.0


BARE = Wire()


@dataclass(frozen=True, eq=False)
class Step:
    """Messages under way together, each from `src` to `dst` (positions of nodes), `times` such steps in a row.

    `part`: bytes of a message per byte of the collective.
    """

    src: np.ndarray
    dst: np.ndarray
    part: float
    times: int


@dataclass(frozen=True)
class Operation:
    """A kernel of so many seconds, or a collective by its name; `after`: operations of the program that end before."""

    stream: int
    work: float | str
    after: tuple[int, ...] = ()


def ring(rings: np.ndarray, passes: int = 2) -> list[Step]:
    """Rings of equal length (a row each): a chunk to the next in every step; an all-reduce goes round twice."""
    length = rings.shape[1]
    return [
        Step(
            rings.ravel(),
            np.roll(rings, -1, axis=1).ravel(),
            1 / length,
            passes * (length - 1),
        )
    ]


def halving_doubling(groups: np.ndarray) -> list[Step]:
    """All-reduce by exchanging halves with partners ever farther, and back; groups (rows) of a power of two."""
    places, steps = np.arange(groups.shape[1]), []
    for bit in range(groups.shape[1].bit_length() - 1):
        partners = groups[:, places ^ (1 << bit)]
        steps.append(Step(groups.ravel(), partners.ravel(), 1 / (2 << bit), times=2))
    return steps


def activity(
    fabric: Fabric, size: float, steps: Sequence[Step], wire: Wire = BARE
) -> Plan:
    """A collective of `size` bytes that takes these steps, one after the other."""
    usage, latency = np.zeros(len(fabric.links)), 0.0
    for step in steps:
        pair, row, share = fabric.spreads(step.src, step.dst)
        usage += np.bincount(
            row, share * step.part * step.times * wire.header, len(usage)
        )
        latency += step.times * (
            wire.start + _longest(fabric, pair, row, share, wire.packet)
        )
    return plan_of(size, usage, latency)


def _longest(
    fabric: Fabric, pair: np.ndarray, row: np.ndarray, share: np.ndarray, packet: float
) -> float:
    """Seconds of the longest of the ways: its links' latencies, and a packet's time on all but its slowest link."""
    sending = packet / fabric.links.bandwidth[row]
    each = np.bincount(pair, share * (fabric.links.latency[row] + sending))
    begins = np.flatnonzero(np.diff(pair, prepend=-1))
    return float((each[pair[begins]] - np.maximum.reduceat(sending, begins)).max())


def exchange(fabric: Fabric, size: float) -> Plan:
    """Every GPU sends its part of `size` bytes to every other, all at once."""
    gpus = fabric.positions(fabric.gpus)
    usage = fabric.exchange(gpus, gpus, 1 / len(gpus))
    pair, row, share = fabric.spreads(gpus, np.roll(gpus, -1))
    return plan_of(size, usage, _longest(fabric, pair, row, share, 0.0))


def plan_of(size: float, usage: np.ndarray, latency: float) -> Plan:
    """A plan that nothing but links and latency bounds; `usage`: bytes on every link of the fabric per byte."""
    links = np.flatnonzero(usage)
    return Plan(
        "send", size, (), "", "", 0, latency, links, usage[links], float("inf"), "guess"
    )


def play(
    fabric: Fabric, programs: Sequence[Sequence[Operation]], plans: Mapping[str, Plan]
) -> Run:
    """Runs programs that all begin at once, one rank each."""
    kernels = sorted(
        {
            op.work
            for program in programs
            for op in program
            if isinstance(op.work, float)
        }
    )
    comms: list[Comm] = []
    columns = [
        _program(rank, program, kernels, comms, plans)
        for rank, program in enumerate(programs)
    ]
    graph = OpGraph(
        tuple(columns),
        tuple(Kernel("aten mm", (number + 1,)) for number in range(len(kernels))),
        tuple(comms),
        streams=(),
        phases=("step",),
        represents={rank: (rank,) for rank in range(len(programs))},
    )
    timed = Timed(
        graph=graph,
        durations=np.array(kernels),
        plans=tuple(plans[comm.axis] for comm in comms),
        bandwidth=fabric.links.bandwidth,
        exclusive=False,
    )
    return execute(timed, 1)


def _program(
    rank: int,
    operations: Sequence[Operation],
    kernels: Sequence[float],
    comms: list[Comm],
    plans: Mapping[str, Plan],
) -> Program:
    """The columns of a program; adds its collectives, each a meeting of its own, to `comms`."""
    kind, payload = [], []
    parts: list[tuple[int, ...]] = []
    for op in operations:
        if isinstance(op.work, float):
            kind.append(KERNEL)
            payload.append(kernels.index(op.work))
        else:
            kind.append(COMM)
            payload.append(len(parts))
            parts.append((len(comms),))
            plan = plans[op.work]
            comms.append(Comm(plan.op, plan.size, ((rank,),), op.work, arrivals=1))
    return _columns(rank, operations, np.array(kind), np.array(payload), parts)


def _columns(
    rank: int,
    operations: Sequence[Operation],
    kind: np.ndarray,
    payload: np.ndarray,
    parts: Sequence[tuple[int, ...]],
) -> Program:
    """A program without host time, phases or layers."""
    count = len(operations)
    zeros = np.zeros(count, dtype=np.int64)
    return Program(
        rank,
        kind,
        np.array([op.stream for op in operations]),
        payload,
        np.zeros(count),
        tuple(op.after for op in operations),
        zeros,
        zeros,
        zeros,
        tuple(parts),
        ("",) * count,
    )
