"""From a lowered step and a cluster to a step that can be executed: durations, plans, limits; frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from prestep.sim.collectives.plan import Plan
from prestep.sim.costs import Gpu
from prestep.sim.costs.gpu_files import generation_of
from prestep.sim.costs.interference import Beside, draws_tiles, scarcity
from prestep.sim.costs.spreads import slowest_of
from prestep.sim.engine.execution import Timed
from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL, Chain, OpGraph, Program
from prestep.sim.planning.fleet import limit_of, limited_of, rest_of
from prestep.sim.planning.job import Job, Machine
from prestep.sim.planning.plans import plan_of, plans_of
from prestep.sim.planning.queue import in_one_queue
from prestep.topologies.fabric import Fabric
from prestep.workloads.job.faults import Faults
from prestep.workloads.lowered import Lowered
from prestep.workloads.models.model import ModelSpec

if TYPE_CHECKING:
    from prestep.sim.planning.chains import Repetition

    Repetitions = Mapping[OpGraph, Repetition]

with lazily():  # Megatron's steps have some
    from prestep.sim.planning import chains as chains_of

# From the launch call's return to the kernel's start on an idle stream (H200, 125m-ddp4-b4 trace): measured.
LAUNCH_LATENCY = 2.0e-6


@dataclass(frozen=True, eq=False, kw_only=True)
class Planned(Timed):
    """A job's step on its machine, ready to be executed; change a field with `dataclasses.replace`.

    Attributes
    ----------
    lowered : Lowered
        The step without times; its graph is ``graph``.
    chains : mapping
        Repetitions of the graphs that chains stand for.
    """

    job: Job
    machine: Machine
    model: ModelSpec
    lowered: Lowered
    chains: Repetitions = field(default_factory=dict)

    @property
    def fabric(self) -> Fabric:
        """The cluster with its changes."""
        return self.machine.fabric

    @property
    def gpu(self) -> Gpu:
        """What the GPUs of the run have in common."""
        return self.machine.gpu

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPU of every rank."""
        return self.machine.gpus


@dataclass(frozen=True, eq=False)
class Slowdown:
    """Factor on a kernel, by index, while communication holds so many channels."""

    kernels: tuple[Kernel | Chain, ...]
    beside: Beside
    sms: int
    chains: Repetitions

    def __call__(self, kernel: int, channels: int) -> float:
        found = self.kernels[kernel]
        if isinstance(found, Chain):
            return (
                self.chains[found.graph].slowdown(channels)
                if found.graph in self.chains
                else 1.0
            )
        return self.beside.slowdown(found, channels, self.sms)


@dataclass(frozen=True, eq=False)
class KernelTimes:
    """Seconds of every kernel alone, and by rank the factor on them: one for all, or one for each kernel."""

    durations: np.ndarray
    scale: Mapping[int, float | np.ndarray]

    def of(self, rank: int, kernels: np.ndarray) -> np.ndarray:
        """Seconds of some kernels on a rank."""
        scale = self.scale.get(rank, 1.0)
        times: np.ndarray = self.durations[kernels] * (
            scale[kernels] if isinstance(scale, np.ndarray) else scale
        )
        return times


def planned(job: Job, machine: Machine, model: ModelSpec, lowered: Lowered) -> Planned:
    """The lowered step on a machine."""
    chains = _repetitions(job, machine, lowered.graph)
    plans = plans_of(job.layout, machine, lowered.graph.comms)
    return _planned(job, machine, model, lowered, chains, plans)


def on_links(planned: Planned, fabric: Fabric) -> Planned:
    """The same step on the same cluster with other links: kernels take as long, communications are planned again."""
    job, machine = planned.job, replace(planned.machine, fabric=fabric)
    plans = plans_of(job.layout, machine, planned.graph.comms)
    if planned.chains:
        chains = {
            graph: chains_of.repetition(
                replace(
                    one.timed,
                    plans=plans_of(job.layout, machine, graph.comms),
                    bandwidth=fabric.links.bandwidth,
                )
            )
            for graph, one in planned.chains.items()
        }
        return _planned(job, machine, planned.model, planned.lowered, chains, plans)
    return replace(
        planned, machine=machine, plans=plans, bandwidth=fabric.links.bandwidth
    )


def kernel_times(job: Job, machine: Machine, graph: OpGraph) -> KernelTimes:
    """What the kernels of a step take, without planning its communications."""
    chains = _repetitions(job, machine, graph)
    return _kernel_times(job, machine, graph, chains, _waiting(job, machine))


def _planned(
    job: Job,
    machine: Machine,
    model: ModelSpec,
    lowered: Lowered,
    chains: Repetitions,
    plans: tuple[Plan, ...],
) -> Planned:
    waiting = _waiting(job, machine)
    graph = with_launches(lowered.graph, machine.gpu, lowered.launch, lowered.hosts)
    timed = _timed(job, machine, graph, plans, chains, waiting)
    return Planned(
        **vars(timed),
        job=job,
        machine=machine,
        model=model,
        lowered=lowered,
        chains=chains,
    )


def _repetitions(job: Job, machine: Machine, graph: OpGraph) -> Repetitions:
    """Every chain's graph, executed by itself.

    That ranks wait for the slowest of them is counted in the graph that the chain is part of. A chain stands for the
    middle of a long step: the power that could be drawn beyond the limit was drawn before.
    """
    graphs = dict.fromkeys(
        kernel.graph for kernel in graph.kernels if isinstance(kernel, Chain)
    )
    repetitions = {}
    for inner in graphs:
        plans = plans_of(job.layout, machine, inner.comms)
        timed = _timed(job, machine, inner, plans, {}, 1.0)
        repetitions[inner] = chains_of.repetition(replace(timed, in_run=True))
    return repetitions


def _waiting(job: Job, machine: Machine) -> float:
    """Factor on kernels for waiting for the slowest of the ranks that work together."""
    return slowest_of(job.layout.world // job.layout.pp, machine.gpu.spread)


def _timed(
    job: Job,
    machine: Machine,
    graph: OpGraph,
    plans: tuple[Plan, ...],
    chains: Repetitions,
    waiting: float,
) -> Timed:
    if job.in_order and not job.captured:
        graph = in_one_queue(graph)
    kernels, gpu, beside = graph.kernels, machine.gpu, machine.beside
    times = _kernel_times(job, machine, graph, chains, waiting)
    links, plan = machine.fabric.links.bandwidth, partial(plan_of, job.layout, machine)
    return Timed(
        graph=graph,
        durations=times.durations,
        plans=plans,
        bandwidth=links,
        slowdown=Slowdown(kernels, beside, gpu.sms, chains),
        contention=beside.communication,
        hops=beside.hops,
        scarcity=scarcity,
        beside=_contention(beside, graph),
        kernel_gap=machine.kernel_gap,
        launch_latency=LAUNCH_LATENCY,
        yielding=_yielding(job, machine, kernels),
        scale=times.scale,
        idle=frozenset(i for i, kernel in enumerate(kernels) if kernel.kind == "spin"),
        grain=_grain(graph, chains),
        timelines=chains_of.timelines_of(graph, chains, links, plan) if chains else {},
        limit=limit_of(gpu, graph) if gpu.power is not None else None,
        limited=limited_of(machine.fleet, graph),
    )


def _yielding(
    job: Job, machine: Machine, kernels: Sequence[Kernel | Chain]
) -> frozenset[int]:
    """Kernels that let a communication go first that was launched before them.

    From one queue all do. In a CUDA graph the next kernel of a stream follows at once, but where a counter of its tiles
    is reset before it, the communication comes in between.
    """
    if not job.in_order:
        return frozenset()
    if not job.captured:
        return frozenset(range(len(kernels)))
    gpu = machine.gpu
    counting = generation_of(gpu.name).counters
    return frozenset(
        i
        for i, kernel in enumerate(kernels)
        if counting and isinstance(kernel, Kernel) and draws_tiles(kernel, gpu.sms)
    )


def _contention(beside: Beside, graph: OpGraph) -> dict[int, float]:
    """Factors on collectives beside single kernels, by index, where they are not the usual one."""
    factors = {i: beside.contention(kernel) for i, kernel in enumerate(graph.kernels)}
    return {i: f for i, f in factors.items() if f != beside.communication}


def _grain(graph: OpGraph, chains: Repetitions) -> dict[int, float]:
    """Seconds until one of the kernels of a chain ends, on average, by the chain's index."""
    return {
        i: chains[k.graph].grain
        for i, k in enumerate(graph.kernels)
        if isinstance(k, Chain) and k.graph in chains
    }


def _kernel_times(
    job: Job, machine: Machine, graph: OpGraph, chains: Repetitions, waiting: float
) -> KernelTimes:
    durations = np.array(
        [_duration(job, machine, kernel, chains) for kernel in graph.kernels]
    )
    return KernelTimes(durations, _scale(machine, graph, waiting))


def _duration(
    job: Job, machine: Machine, kernel: Kernel | Chain, chains: Repetitions
) -> float:
    """Seconds of a kernel on an idle GPU at the clock of a long run."""
    gpu = machine.gpu
    if isinstance(kernel, Chain):
        return chains[kernel.graph].duration(kernel) if kernel.graph in chains else 0.0
    if kernel.kind == "spin":
        return kernel.shape[0] * 1e-9
    kernel = _in_half(kernel, job.precision, gpu)
    time = gpu.in_step(kernel, job.degrees.ranks > 1, machine.toolkit)
    return time * gpu.fused if kernel.kind == "fused" and job.joined_load else time


def _in_half(kernel: Kernel, precision: str, gpu: Gpu) -> Kernel:
    """Kernels in 16 bits of a job in fp16, where the GPU is slower in bf16 (before Ampere); elsewhere both are one."""
    if precision != "fp16" or kernel.dtype != "bf16":
        return kernel
    slower = gpu.peak.get("bf16", 0.0) < gpu.peak.get("fp16", 0.0)
    return replace(kernel, dtype="fp16") if slower else kernel


def _rest_of_slow(waiting: float, faults: Faults) -> float:
    """What is left of the factor of the slowest for the rank of [faults]; nothing where it has more to do by itself."""
    return 1.0 if faults.slow_per_layer else rest_of(waiting, faults.slow_factor)


def _scale(
    machine: Machine, graph: OpGraph, waiting: float
) -> dict[int, float | np.ndarray]:
    """Factor on the kernels of every simulated rank: of its GPU, of the slowest of all, and of [faults]."""
    faults = machine.faults
    spins = [kernel.kind == "spin" for kernel in graph.kernels]
    # Chains have been slowed where they were executed.
    slow = np.array(
        [
            1.0 if isinstance(kernel, Chain) else faults.slow_factor
            for kernel in graph.kernels
        ]
    )
    scale: dict[int, float | np.ndarray] = {}
    for program in graph.programs:
        rank = graph.pace.get(program.rank, program.rank)
        known = rank == faults.slow_rank
        # Which rank is slow was said: the slowest of all is that one, as soon as it is slower than chance makes others.
        together = _rest_of_slow(waiting, faults) if known else waiting
        ratio = machine.fleet.scale(graph, rank, together, spins)
        scale[program.rank] = ratio * slow if known else ratio
    return scale


def with_launches(
    graph: OpGraph, gpu: Gpu, each: float, hosts: Sequence[float] = ()
) -> OpGraph:
    """The graph with the host's time for further CUDA kernels of operations, spent before what follows them.

    Parameters
    ----------
    each
        Seconds of a launch; 0: what operations cost the host has them all.
    hosts
        Of every rank, time of its host over that; empty: 1.
    """
    if not each:
        return graph
    further = [
        gpu.further_launches(kernel) if isinstance(kernel, Kernel) else 0
        for kernel in graph.kernels
    ]
    seconds = each * np.array(further)
    programs = tuple(
        _paying(p, seconds * (hosts[p.rank] if hosts else 1.0)) for p in graph.programs
    )
    return replace(graph, programs=programs)


def _paying(program: Program, seconds: np.ndarray) -> Program:
    """Seconds of the host by kernel; what a CUDA graph replays costs the host nothing."""
    host, launched = program.host.copy(), (program.kind == KERNEL) & (program.host > 0)
    launched[-1:] = False
    at = np.flatnonzero(launched)
    host[at + 1] += seconds[program.payload[at]]
    return replace(program, host=host)
