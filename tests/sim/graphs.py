"""Operation graphs and machines made by hand, for tests of the engine; times in whole microseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.engine.engine import Timed
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import COMM, KERNEL, SYNC, Comm, OpGraph, Program

US = 1e-6
PHASES = ("forward", "backward", "optimizer", "communication")


@dataclass(frozen=True)
class Op:
    """An operation: a kernel of `work` microseconds, or a part in the communications `comms`, or a wait of the host."""

    stream: str = "compute"
    work: float = 1.0
    host: float = 0.0
    deps: tuple[int, ...] = ()
    comms: tuple[int, ...] = ()
    sync: bool = False

    @property
    def kind(self) -> int:
        return SYNC if self.sync else COMM if self.comms else KERNEL


def graph(
    ranks: Sequence[Sequence[Op]],
    comms: Sequence[Comm] = (),
    limit: int = 1024,
    streams: Sequence[str] = (),
) -> OpGraph:
    """A graph of one program per rank; kernel payloads index the distinct lengths of all kernels."""
    names = tuple(
        dict.fromkeys([*streams, *(op.stream for ops in ranks for op in ops)])
    )
    works = tuple(
        dict.fromkeys(op.work for ops in ranks for op in ops if op.kind == KERNEL)
    )
    programs = tuple(
        _program(rank, ops, names, works) for rank, ops in enumerate(ranks)
    )
    kernels = tuple(Kernel("spin", (round(work * 1000),)) for work in works)
    represents = {rank: (rank,) for rank in range(len(ranks))}
    return OpGraph(programs, kernels, tuple(comms), names, PHASES, represents, limit)


def _program(
    rank: int, ops: Sequence[Op], streams: tuple[str, ...], works: tuple[float, ...]
) -> Program:
    parts = [op.comms for op in ops if op.kind == COMM]
    part = iter(range(len(parts)))
    payload = [
        works.index(op.work)
        if op.kind == KERNEL
        else next(part)
        if op.kind == COMM
        else 0
        for op in ops
    ]
    zeros = np.zeros(len(ops), np.int16)
    return Program(
        rank,
        np.array([op.kind for op in ops], np.int8),
        np.array([streams.index(op.stream) for op in ops], np.int16),
        np.array(payload, np.int32),
        np.array([op.host * US for op in ops], np.float64),
        tuple(op.deps for op in ops),
        zeros.astype(np.int8),
        zeros - 1,
        zeros,
        tuple(parts),
        tuple(("kernel", "all_reduce", "synchronize")[op.kind] for op in ops),
    )


def all_reduce(ranks: Sequence[int] = (0, 1), size: float = 10.0) -> Comm:
    """One that takes `size` microseconds in `timed`, after its latency of 1."""
    return Comm("all_reduce", size, (tuple(ranks),), "dp", len(ranks))


def _plan(comm: Comm, channels: int) -> Plan:
    one, use = np.zeros(1, np.int64), np.ones(1)
    return Plan(
        comm.op,
        comm.size,
        ("a", "b"),
        "ring",
        "Simple",
        channels,
        US,
        one,
        use,
        1 / US,
        "guess",
    )


def timed(made: OpGraph, **changes: Any) -> Timed:
    """Kernels as long as they say; one link of a byte per microsecond; gaps of 1 and launches of 2 microseconds."""
    channels = changes.pop("channels", 4)
    values: dict[str, Any] = {
        "graph": made,
        "durations": np.array([k.shape[0] * 1e-9 for k in made.kernels]),
        "slowdown": _never,
        "plans": tuple(_plan(comm, channels) for comm in made.comms),
        "bandwidth": np.array([1 / US]),
        "contention": 1.0,
        "kernel_gap": 1 * US,
        "launch_latency": 2 * US,
        "scale": {},
    }
    return Timed(**{**values, **changes})


def _never(kernel: int, channels: int) -> float:
    return 1.0


def beside(factors: Mapping[int, float]) -> Callable[[int, int], float]:
    """Kernels that slow down by a factor while any channels are taken."""
    return lambda kernel, channels: factors.get(kernel, 1.0)
