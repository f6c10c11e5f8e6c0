"""Predicts a training step: scenario -> operation graph -> execution on a cluster -> result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import prod
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from sim.chains import Chains
from sim.collectives import plan_collective
from sim.costs import Gpu
from sim.costs.frameworks import kernel_gap
from sim.costs.interference import contention, slowdown
from sim.costs.measured import gpu_of
from sim.engine import Machine, Run, execute
from sim.errors import InputError, Mistake
from sim.fleet import Fleet, fleet_of
from sim.jobs import refuse
from sim.layout import axis_order, check_layout, countable
from sim.opgraph import Chain, Comm, OpGraph
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
# Megatron's step ends with the host reading the gradients' norm: every step begins level, the second is like any other.
MEGATRON_STEPS = 2
# Kernels whose time follows the SMs' clock.
CLOCKED = ("gemm", "gemm_bias", "grouped_gemm", "attention_fwd", "attention_bwd")
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
    chains: Chains | None = None


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
    chains: Chains

    def simulation(self, run: Run) -> Simulation:
        return Simulation(self.scenario, self.model, self.fabric, self.gpu, self.lowered, run, self.gpus, self.chains)


def simulate(
    scenario: Scenario, steps: int = STEPS, fabric: Fabric | None = None, lowered: Lowered | None = None
) -> Simulation:
    """Executes the scenario's step on its cluster.

    Who has them already gives the cluster (with its changes) and the lowered step of the same work on another cluster;
    it is lowered again all the same where other GPUs are unlike than there, or hosts slower.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    refuse(scenario, "one simulation")
    job = prepare(scenario, fabric or load_fabric(scenario), lowered=lowered)
    if scenario.training.framework == "megatron":
        steps = min(steps, MEGATRON_STEPS)
    return job.simulation(execute(job.lowered.graph, job.machine, steps))


def prepare(
    scenario: Scenario, fabric: Fabric, gpus: tuple[str, ...] | None = None, lowered: Lowered | None = None
) -> Prepared:
    """Lowers one job and gives it its GPUs: those of `gpus`, else where its placement puts the ranks.

    `lowered` is taken where it was made for the same host and speeds of GPUs.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    model = _checked_model(scenario, fabric)
    gpus = placements(scenario, fabric)[0] if gpus is None else gpus
    fleet = fleet_of(fabric, gpu_of(fabric), gpus)
    if lowered is None or lowered.made_for != (host_factor(scenario, fabric), fleet.speeds):
        lowered = _lowered(scenario, model, fabric, fleet, gpus)
    run_on, chains = _machine_and_chains(scenario, lowered.graph, fabric, fleet.gpu, gpus)
    return Prepared(scenario, model, fabric, fleet.gpu, lowered, run_on, gpus, chains)


def lowered_on(scenario: Scenario, fabric: Fabric) -> Lowered:
    """The step's operations and memory without their times.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    model, gpus = _checked_model(scenario, fabric), placements(scenario, fabric)[0]
    return _lowered(scenario, model, fabric, fleet_of(fabric, gpu_of(fabric), gpus), gpus)


def _checked_model(scenario: Scenario, fabric: Fabric) -> ModelSpec:
    model = load_model(scenario.model, scenario.where)
    if huge := list(countable(scenario, model.layers)):
        raise InputError(huge)
    mistakes = check_layout(scenario, allotted(scenario, fabric), model) + not_simulated(scenario)
    if mistakes:
        raise InputError(mistakes)
    return model


def _machine_and_chains(
    scenario: Scenario, graph: OpGraph, fabric: Fabric, gpu: Gpu, gpus: tuple[str, ...] | None
) -> tuple[Machine, Chains]:
    chains = Chains(lambda inner: machine(scenario, inner, fabric, gpu, gpus, alone=True))
    return machine(scenario, graph, fabric, gpu, gpus, chains), chains


def _lowered(scenario: Scenario, model: ModelSpec, fabric: Fabric, fleet: Fleet, gpus: tuple[str, ...]) -> Lowered:
    factor = host_factor(scenario, fabric)
    if scenario.training.framework != "megatron":
        return lower(scenario, model, factor, fleet.speeds)
    from workloads.megatron.lower import Place
    from workloads.megatron.lower import lower as lower_megatron

    if fleet.speeds or scenario.faults.slow_rank is not None:
        found = "GPUs of different speed"
        hint = "another framework simulates every rank"
        raise InputError(Mistake(scenario.where, "training.framework", found, "equal GPUs with megatron", hint))
    hosts = [str(fabric.graph.nodes[gpu].get("host", "")) for gpu in gpus]
    return lower_megatron(scenario, model, factor, Place(hosts.count(hosts[0]), blocking=False))


def rerun(simulation: Simulation, fabric: Fabric) -> Simulation:
    """The same operations on the same cluster with other links: nothing is lowered again."""
    graph, steps = simulation.lowered.graph, simulation.run.end[0].shape[0]
    run_on, chains = _machine_and_chains(simulation.scenario, graph, fabric, simulation.gpu, simulation.gpus or None)
    return replace(simulation, fabric=fabric, run=execute(graph, run_on, steps), chains=chains)


def predict(scenario: Scenario, prices: bool = False) -> Result:
    """The predicted step of a scenario; see :class:`sim.result.Result`. Of several jobs: `sim.together.predict`.

    With `prices`, links have their shadow prices, where the cluster is small enough: see `sim.shadow`.
    """
    from sim.report import result_of
    from sim.shadow import affordable, shadow_prices

    simulation = simulate(scenario)
    result = result_of(simulation, shadow_prices(simulation) if prices and affordable(simulation) else None)
    return _with_storage(simulation, result)


def _with_storage(simulation: Simulation, result: Result) -> Result:
    """The result with what its [checkpoint] and [dataload] cost."""
    used = sections_in_use(simulation.scenario)
    if "checkpoint" in used:
        from sim.checkpointing import report_of

        result = replace(result, checkpoint=report_of(simulation, result.step_time))
    if "dataload" in used:
        from sim.feeding import with_data

        result = with_data(simulation, result)
    return result


def step_time(scenario: Scenario) -> float:
    """Seconds of the predicted step alone, without timeline, memory and evidence."""
    from sim.report import step_times

    made = simulate(scenario)
    times = step_times(made.lowered.graph, made.run)
    by_rank = [float(t[-1]) for r, t in times.items() for _ in made.lowered.graph.represents[r]]
    return float(np.median(by_rank))


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
    scenario: Scenario, graph: OpGraph, fabric: Fabric, gpu: Gpu, gpus: tuple[str, ...] | None = None,
    chains: Chains | None = None, alone: bool = False,
) -> Machine:  # fmt: skip
    """Durations, interference and communication plans of a graph on a fabric; rank r is on ``gpus[r]``.

    ``alone``: it is a chain's own graph; that ranks wait for the slowest is counted in the graph that it is part of.
    """
    gpus = fabric.gpus if gpus is None else gpus
    kernels = graph.kernels
    p = scenario.parallel
    clock = gpu.crowded if p.dp * p.tp * p.pp * p.cp > 1 else 1.0

    def idle_time(k: Kernel | Chain) -> float:
        if isinstance(k, Chain):
            return chains.duration(k) if chains is not None else 0.0
        if k.kind == "spin":
            return k.shape[0] * 1e-9
        return gpu.duration(k) * (clock * gpu.sustained(k) if k.kind in CLOCKED else 1.0)

    duration = np.array([idle_time(k) for k in kernels])

    @cache
    def slow(kernel: int, channels: int) -> float:
        k = kernels[kernel]
        if isinstance(k, Chain):
            return chains.slowdown(k, channels) if chains is not None else 1.0
        return slowdown(k, channels, gpu.sms)

    known: dict[tuple[object, ...], Plan] = {}

    def plan(comm: Comm) -> Plan:
        # NCCL chooses the channels of a transfer by the size of its communicator: the peers are named after the pair.
        key = (comm.op, comm.size, comm.groups, comm.axis, comm.in_place)
        if key in known:
            return known[key]
        plans = []
        for group in comm.groups:
            extra = pipeline_of(scenario, group) if comm.axis == "pp" else ()
            members = [gpus[r] for r in (*group, *(r for r in extra if r not in group))]
            plans.append(plan_collective(comm.op, comm.size, members, fabric, scenario.nccl, comm.in_place))
        known[key] = _merged(plans)
        return known[key]

    captured = kernel_gap(scenario.training.framework)
    gap = gpu.gap if captured is None else min(gpu.gap, captured)
    together = 1.0 if alone else slowest_of(scenario.parallel.dp * scenario.parallel.tp, gpu.spread)
    spins = [k.kind == "spin" for k in kernels]
    fleet = fleet_of(fabric, gpu_of(fabric), gpus)
    scale = {p.rank: fleet.scale(graph, p.rank, together, spins) for p in graph.programs}
    if scenario.faults.slow_rank is not None:
        # Which rank is slow was said: it is a GPU like any other, not the slowest of all of them.
        scale[scenario.faults.slow_rank] = fleet.scale(graph, scenario.faults.slow_rank, 1.0, spins) * (
            scenario.faults.slow_factor
        )
    idle = frozenset(i for i, spin in enumerate(spins) if spin)
    grain = {i: chains.grain(k) for i, k in enumerate(kernels) if isinstance(k, Chain)} if chains is not None else {}
    rates = fabric.links.bandwidth
    return Machine(duration, slow, plan, rates, contention(), gap, LAUNCH_LATENCY, scale, idle, grain=grain)


def pipeline_of(scenario: Scenario, pair: tuple[int, ...]) -> range:
    """Ranks of the pipeline that a pair of ranks is in, whose communicator its transfers use."""
    p = scenario.parallel
    order = [axis for axis in axis_order(scenario) if axis != "ep"]
    stride = prod(getattr(p, axis) for axis in order[: order.index("pp")])
    first = pair[0] - pair[0] // stride % p.pp * stride
    return range(first, first + p.pp * stride, stride)


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


def not_simulated(scenario: Scenario) -> list[Mistake]:
    """Sections and values that are understood but not simulated yet are refused, not ignored."""
    where, found = scenario.where, []
    for section in sections_in_use(scenario):
        if section in ("checkpoint", "dataload") and scenario.name:
            found.append(Mistake(where, section, "a section", "nothing", "not simulated for several jobs"))
    if "inference" in sections_in_use(scenario):
        found.append(Mistake(where, "inference", "a section", "a training step here", "prestep run predicts serving"))
    if "checkpoint" in sections_in_use(scenario):
        from sim.checkpointing import mistakes_of

        found += mistakes_of(scenario)
    t, p = scenario.training, scenario.parallel
    megatron = t.framework == "megatron"
    sharding = ("zero1",) if megatron else ("fsdp", "zero3")
    for key, value, known in (
        ("training.precision", t.precision, ("bf16", "fp16", "fp8") if megatron else ("bf16",)),
        ("training.recompute", t.recompute, ("none", "selective", "full") if megatron else ("none", "full")),
        ("training.optimizer", t.optimizer, ("adamw", "adam") if megatron else ("adamw",)),
        ("training.framework", t.framework, ("pytorch-eager", "pytorch-compiled", "cuda-graph", "megatron")),
        ("parallel.data_parallel", p.data_parallel or "none", ("none", "ddp", "ddp-no-overlap", *sharding)),
        ("parallel.cp", str(p.cp), (str(p.cp),) if megatron else ("1",)),
    ):
        if value not in known:
            found.append(Mistake(where, key, f'"{value}"', " or ".join(known), "not simulated yet"))
    if megatron:
        known = ("1f1b", "interleaved")
        if p.pp > 1 and p.schedule not in known:
            expected = " or ".join(known)
            found.append(
                Mistake(where, "parallel.schedule", f'"{p.schedule}"', expected, "with megatron not simulated yet")
            )
        return found
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
