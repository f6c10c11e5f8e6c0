"""Kernels and collectives side by side, as the engine runs them: two streams on every rank, queued by one host.

The harness queues collectives on one stream, then kernels on another, and reports each side's mean from its first
to its last operation. It does so twice: with so many collectives that the kernels end first (the kernels' figure),
and with kernels for 60 ms (the collectives' figure). Collectives that the GPU runs while the host still queues, and
those left when the kernels have ended, run alone and count all the same. So the whole run is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from prestep.sim.collectives.constants import load
from prestep.sim.collectives.plan import Plan
from prestep.sim.costs import load_gpu
from prestep.sim.costs.interference import BUNDLED, Beside, scarcity
from prestep.sim.engine.engine import Timed, execute
from prestep.sim.engine.execution import Run
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import COMM, KERNEL, Comm, OpGraph, Program
from prestep.sim.planning.planned import LAUNCH_LATENCY

PHASES = ("forward", "backward", "optimizer", "communication")
OUTLASTING = 1.3  # kernels that are run over those that should outlast the collectives
KERNEL_LAUNCH = 6e-6  # measured: s of the host per eager matrix product; far less than one takes, so of no weight


@dataclass(frozen=True)
class Queue:
    """How many of each side every rank queues."""

    kernels: int
    collectives: int


def queues(compute: float, comm: float, share: float = 1.0) -> tuple[Queue, Queue]:
    """Queues of the harness's two runs (the kernels' and the collectives'), from seconds alone (`run_overlap`).

    `share` of these: a fit that runs them many times may run shorter ones.
    """
    return (
        Queue(
            max(4, int(share * 0.02 / compute)), 2 * max(4, int(share * 0.03 / comm))
        ),
        Queue(int(share * 0.06 / compute) + 8, max(4, int(share * 0.02 / comm))),
    )


def side_by_side(
    kernel: Kernel,
    compute: float,
    comm: float,
    plan: Plan,
    bandwidth: np.ndarray,
    gpu: str,
    constants: Beside = BUNDLED,
    share: float = 1.0,
) -> tuple[float, float]:
    """Mean seconds of the kernels and of the collectives beside each other.

    Parameters
    ----------
    kernel, compute
        What runs, and its seconds alone on the slowest rank.
    comm
        Seconds of the collective alone as the harness measured it; sets only how many are queued.
    plan
        The collective.
    bandwidth
        Bytes/s of every link of the fabric.
    gpu
        Model of the GPUs, "h200".
    constants
        What kernels and collectives cost each other.
    share
        Of the harness's queues: its runs are as long as that.
    """
    pair = _Pair(kernel, compute, plan, bandwidth, gpu, constants)
    first, second = queues(compute, comm, share)
    # Kernels that begin when the last collective has ended tell nothing of collectives: first without most of them.
    beside = OUTLASTING * constants.contention(kernel) * second.collectives * comm
    fewer = Queue(int(beside / compute) + 8, second.collectives)
    collectives = pair.run(fewer) if fewer.kernels < second.kernels else None
    if collectives is None or not _outlasts(*collectives):
        collectives = pair.run(second)
    return _mean(*pair.run(first), KERNEL), _mean(*collectives, COMM)


@dataclass(frozen=True)
class _Pair:
    """A kernel and a collective that run beside each other; see `side_by_side`."""

    kernel: Kernel
    compute: float
    plan: Plan
    bandwidth: np.ndarray
    gpu: str
    constants: Beside

    def run(self, queue: Queue) -> tuple[Timed, Run]:
        """One of the harness's runs, by the engine."""
        facts, ranks = load_gpu(self.gpu), len(self.plan.ranks)
        host = load(self.gpu).tables["host"][self.plan.op]
        graph = _graph(queue, self.kernel, self.plan, ranks, host)
        timed = Timed(
            graph=graph,
            durations=np.array([self.compute]),
            plans=(self.plan,) * len(graph.comms),
            bandwidth=self.bandwidth,
            slowdown=lambda _, channels: self.constants.slowdown(
                self.kernel, channels, facts.sms, self.compute
            ),
            contention=self.constants.contention(self.kernel),
            scarcity=scarcity,
            kernel_gap=facts.gap,
            launch_latency=LAUNCH_LATENCY,
            scale=_paces(ranks, facts.spread),
        )
        return timed, execute(timed, 1)


def _outlasts(timed: Timed, run: Run) -> bool:
    """Whether kernels of every rank still run when its last collective ends."""
    return all(
        end[0, program.kind == KERNEL].max() > end[0, program.kind == COMM].max()
        for program, end in zip(timed.graph.programs, run.end, strict=True)
    )


def _paces(ranks: int, spread: float) -> dict[int, float]:
    """Kernel times of the GPUs relative to the slowest: expected order statistics of a normal spread (Blom)."""
    z = [NormalDist().inv_cdf((i + 0.625) / (ranks + 0.25)) for i in range(ranks)]
    return {i: (1 + spread * v) / (1 + spread * z[-1]) for i, v in enumerate(z)}


def _graph(
    queue: Queue, kernel: Kernel, plan: Plan, ranks: int, host: float
) -> OpGraph:
    everyone = tuple(range(ranks))
    comms = tuple(
        Comm(plan.op, plan.size, (everyone,), "dp", ranks)
        for _ in range(queue.collectives)
    )
    programs = tuple(_program(rank, queue, host) for rank in everyone)
    return OpGraph(
        programs,
        (kernel,),
        comms,
        ("nccl", "compute"),
        PHASES,
        {rank: (rank,) for rank in everyone},
    )


def _program(rank: int, queue: Queue, host: float) -> Program:
    n = queue.collectives + queue.kernels
    collective = np.arange(n) < queue.collectives
    zeros = np.zeros(n, np.int16)
    return Program(
        rank=rank,
        kind=np.where(collective, COMM, KERNEL).astype(np.int8),
        stream=np.where(collective, 0, 1).astype(np.int16),
        payload=np.where(collective, np.arange(n), 0).astype(np.int32),
        host=np.where(collective, host, KERNEL_LAUNCH),
        deps=((),) * n,
        phase=zeros.astype(np.int8),
        layer=zeros - 1,
        microbatch=zeros,
        parts=tuple((i,) for i in range(queue.collectives)),
        names=("collective",) * queue.collectives + ("kernel",) * queue.kernels,
    )


def _mean(timed: Timed, run: Run, side: int) -> float:
    """Seconds per operation of one side from its first launch to its last end, on the slowest rank."""
    means = []
    for program, launch, end in zip(
        timed.graph.programs, run.launch, run.end, strict=True
    ):
        mine = program.kind == side
        means.append((end[0, mine][-1] - launch[0, mine][0]) / mine.sum())
    return float(max(means))
