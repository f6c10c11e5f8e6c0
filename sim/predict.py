"""Predicts a training step: scenario -> operation graph -> execution on a cluster -> result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from sim.collectives import plan_collective
from sim.costs import Gpu, load_gpu
from sim.costs.frameworks import kernel_gap
from sim.costs.interference import contention, slowdown
from sim.engine import Machine, Run, execute
from sim.errors import InputError, Mistake
from sim.jobs import refuse
from sim.layout import check_layout
from sim.opgraph import Comm, OpGraph
from sim.placing import allotted, placements
from sim.spec import sections_in_use
from workloads.lower import Lowered, lower
from workloads.model import ModelSpec, load_model

if TYPE_CHECKING:
    from sim.collectives.plan import Plan
    from sim.costs.kernel import Kernel
    from sim.result import Result
    from sim.sections import Scenario
    from topologies.fabric import Fabric

# Steps simulated; the last is reported. Two bring the host's lead over the GPU to its steady state.
STEPS = 3
# Kernels whose time follows the SMs' clock.
CLOCKED = ("gemm", "gemm_bias", "attention_fwd", "attention_bwd")
# From the launch call's return to the kernel's start on an idle stream (H200, 125m-ddp4-b4 trace): measured.
LAUNCH_LATENCY = 2.0e-6


@dataclass(frozen=True)
class Simulation:
    """A run with everything it was made from."""

    scenario: Scenario
    model: ModelSpec
    fabric: Fabric
    gpu: Gpu
    lowered: Lowered
    run: Run
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A job with everything it needs to run; ``gpus`` has the GPU of every rank."""

    scenario: Scenario
    model: ModelSpec
    fabric: Fabric
    gpu: Gpu
    lowered: Lowered
    machine: Machine
    gpus: tuple[str, ...]

    def simulation(self, run: Run) -> Simulation:
        return Simulation(self.scenario, self.model, self.fabric, self.gpu, self.lowered, run, self.gpus)


def simulate(scenario: Scenario, steps: int = STEPS) -> Simulation:
    """Executes the scenario's step on its cluster.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    refuse(scenario, "one simulation")
    fabric = load_fabric(scenario)
    job = prepare(scenario, fabric)
    return job.simulation(execute(job.lowered.graph, job.machine, steps))


def prepare(scenario: Scenario, fabric: Fabric, gpus: tuple[str, ...] | None = None) -> Prepared:
    """Lowers one job and gives it its GPUs: those of `gpus`, else where its placement puts the ranks.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    model = load_model(scenario.model, scenario.where)
    mistakes = check_layout(scenario, allotted(scenario, fabric), model) + _not_simulated(scenario)
    if mistakes:
        raise InputError(mistakes)
    gpus = placements(scenario, fabric)[0] if gpus is None else gpus
    gpu = load_gpu(fabric.gpu_model)
    lowered = lower(scenario, model, host_factor(scenario, fabric))
    return Prepared(scenario, model, fabric, gpu, lowered, machine(scenario, lowered.graph, fabric, gpu, gpus), gpus)


def predict(scenario: Scenario) -> Result:
    """The predicted step of a scenario; see :class:`sim.result.Result`. Of several jobs: `sim.together.predict`."""
    from sim.report import result_of

    return result_of(simulate(scenario))


def load_fabric(scenario: Scenario) -> Fabric:
    """The cluster of a scenario with its changes and its routing."""
    from topologies import load_cluster
    from topologies.policies import Routing

    c = scenario.cluster
    fabric = load_cluster(c.file or c.name or "h200-host-4", hosts=c.hosts, overrides=c.set)
    return fabric.with_routing(Routing(c.routing, c.routing_seed, c.routing_flows, not scenario.nccl.pxn_disable))


def host_factor(scenario: Scenario, fabric: Fabric) -> float:
    """How much slower this host runs framework code than the one on which its costs were fitted."""
    if scenario.cluster.host_factor is not None:
        return scenario.cluster.host_factor
    known = fabric.facts.get("host_factor")
    return known.value if known is not None else 1.0


def machine(
    scenario: Scenario, graph: OpGraph, fabric: Fabric, gpu: Gpu, gpus: tuple[str, ...] | None = None
) -> Machine:
    """Durations, interference and communication plans of a graph on a fabric; rank r is on ``gpus[r]``."""
    gpus = fabric.gpus if gpus is None else gpus
    kernels = graph.kernels
    p = scenario.parallel
    clock = gpu.crowded if p.dp * p.tp * p.pp * p.cp > 1 else 1.0

    def alone(k: Kernel) -> float:
        if k.kind == "spin":
            return k.shape[0] * 1e-9
        return gpu.duration(k) * (clock if k.kind in CLOCKED else 1.0)

    duration = np.array([alone(k) for k in kernels])

    @cache
    def slow(kernel: int, channels: int) -> float:
        return slowdown(kernels[kernel], channels, gpu.sms)

    def plan(comm: Comm) -> Plan:
        # NCCL chooses the channels of a transfer by the size of its communicator: the peers are named after the pair.
        others = scenario.parallel.pp - 2 if comm.axis == "pp" else 0
        plans = []
        for group in comm.groups:
            extra = [r for r in range(len(gpus)) if r not in group][: max(0, others)]
            members = [gpus[r] for r in (*group, *extra)]
            plans.append(plan_collective(comm.op, comm.size, members, fabric, scenario.nccl, comm.in_place))
        return _merged(plans)

    captured = kernel_gap(scenario.training.framework)
    gap = gpu.gap if captured is None else min(gpu.gap, captured)
    together = slowest_of(scenario.parallel.dp * scenario.parallel.tp, gpu.spread)
    scale = {p.rank: together for p in graph.programs}
    if scenario.faults.slow_rank is not None:
        # Which rank is slow was said: it is a GPU like any other, not the slowest of all of them.
        scale[scenario.faults.slow_rank] = scenario.faults.slow_factor
    idle = frozenset(i for i, k in enumerate(kernels) if k.kind == "spin")
    return Machine(duration, slow, plan, fabric.links.bandwidth, contention(), gap, LAUNCH_LATENCY, scale, idle)


def slowest_of(gpus: int, spread: float) -> float:
    """Expected time of the slowest of several GPUs that wait for each other, relative to the average one.

    GPUs of one model differ by ``spread`` (relative standard deviation, taken as normal); the expected maximum is
    Blom's approximation (Statistical Estimates and Transformed Beta-Variables, 1958).
    """
    if gpus <= 1:
        return 1.0
    return 1.0 + spread * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def _merged(plans: list[Plan]) -> Plan:
    """One plan for copies that run at the same moment: their usage adds up on the links, and the slowest counts.

    Copies differ where ranks are not placed regularly; whoever waits for one of them waits for all.
    """
    first = plans[0]
    if len(plans) == 1:
        return first
    links = np.concatenate([p.links for p in plans])
    usage = np.concatenate([p.usage for p in plans])
    unique, inverse = np.unique(links, return_inverse=True)
    return replace(
        first,
        links=unique,
        usage=np.bincount(inverse, weights=usage),
        latency=max(p.latency for p in plans),
        rate_cap=min(p.rate_cap for p in plans),
    )


def _not_simulated(scenario: Scenario) -> list[Mistake]:
    """Sections and values that are understood but not simulated yet are refused, not ignored."""
    where, found = scenario.where, []
    for section in sections_in_use(scenario):
        if section in ("checkpoint", "dataload"):
            found.append(Mistake(where, section, "a section", "nothing", "it is not simulated yet; leave it out"))
    t, p = scenario.training, scenario.parallel
    for key, value, known in (
        ("training.precision", t.precision, ("bf16",)),
        ("training.recompute", t.recompute, ("none", "full")),
        ("training.optimizer", t.optimizer, ("adamw",)),
        ("training.framework", t.framework, ("pytorch-eager", "pytorch-compiled", "cuda-graph")),
        ("parallel.data_parallel", p.data_parallel or "none", ("none", "ddp", "ddp-no-overlap", "fsdp", "zero3")),
        ("parallel.cp", str(p.cp), ("1",)),
    ):
        if value not in known:
            found.append(Mistake(where, key, f'"{value}"', " or ".join(known), "not simulated yet"))
    if p.pp > 1 and p.dp > 1 and p.data_parallel in ("fsdp", "zero3"):
        hint = "sharded pipeline stages are not simulated yet"
        found.append(Mistake(where, "parallel.data_parallel", f'"{p.data_parallel}"', "ddp or ddp-no-overlap", hint))
    if p.ep > 1 and p.data_parallel in ("fsdp", "zero3"):
        hint = "sharding experts that are spread over ranks is not simulated yet"
        found.append(Mistake(where, "parallel.data_parallel", f'"{p.data_parallel}"', "ddp or ddp-no-overlap", hint))
    elif 1 < p.ep < p.dp and p.data_parallel != "none":
        hint = "averaging experts over their replicas is not simulated yet"
        found.append(Mistake(where, "parallel.ep", str(p.ep), f"dp = {p.dp}", hint))
    return found
