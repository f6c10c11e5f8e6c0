"""Predicts a training step: scenario -> operation graph -> execution on a cluster -> result."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from sim.collectives import machine as constants
from sim.collectives import plan_collective
from sim.costs import Gpu
from sim.costs.frameworks import kernel_gap
from sim.costs.interference import laid_over
from sim.costs.measured import gpu_of
from sim.engine.engine import Machine, Run, execute
from sim.errors import InputError, Mistake
from sim.graph.opgraph import Chain, Comm, OpGraph
from sim.planning.chains import Chains
from sim.planning.fleet import Fleet, fleet_of
from sim.planning.symmetry import unlike
from sim.spec.jobs import refuse
from sim.spec.load import sections_in_use
from sim.spec.placing import allotted, placements
from sim.spec.rules.layout import check_layout, countable
from workloads.frameworks import framework_of
from workloads.lowered import Lowered, Place, Site
from workloads.models.model import ModelSpec, load_model
from workloads.refusals import refusals

if TYPE_CHECKING:
    from sim.analysis.prediction import Result
    from sim.collectives.plan import Plan
    from sim.graph.kernel import Kernel
    from sim.spec.sections import Scenario
    from topologies.fabric import Fabric

_log = logging.getLogger("prestep")
STEPS = 3  # simulated at most; the last is reported
# Kernels whose time follows the SMs' clock.
CLOCKED = (
    "gemm",
    "gemm_bias",
    "grouped_gemm",
    "attention_fwd",
    "attention_bwd",
    "flash2_attention_fwd",
    "flash2_attention_bwd",
)
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
        return Simulation(
            self.scenario,
            self.model,
            self.fabric,
            self.gpu,
            self.lowered,
            run,
            self.gpus,
            self.chains,
        )


def simulate(
    scenario: Scenario,
    steps: int = STEPS,
    fabric: Fabric | None = None,
    lowered: Lowered | None = None,
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
    _log.info("%s: lowering the step", scenario.where)
    job = prepare(scenario, fabric or load_fabric(scenario), lowered=lowered)
    steps = min(steps, framework_of(scenario).steps)
    graph = job.lowered.graph
    operations = sum(len(p) for p in graph.programs)
    _log.info(
        "executing %d operations of %d simulated ranks, %d steps",
        operations,
        len(graph.programs),
        steps,
    )
    run = execute(graph, job.machine, steps)
    _log.info("executed: the steps end at %.6g s", run.finished)
    return job.simulation(run)


def prepare(
    scenario: Scenario,
    fabric: Fabric,
    gpus: tuple[str, ...] | None = None,
    lowered: Lowered | None = None,
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
    site = _site(scenario, fabric, fleet, gpus)
    marks = framework_of(scenario).marks(site)
    if lowered is None or lowered.made_for != (site.host_factor, marks):
        lowered = _lowered(scenario, model, fabric, fleet, gpus)
    run_on, chains = _machine_and_chains(
        scenario, lowered.graph, fabric, fleet.gpu, gpus
    )
    return Prepared(scenario, model, fabric, fleet.gpu, lowered, run_on, gpus, chains)


def lowered_on(scenario: Scenario, fabric: Fabric) -> Lowered:
    """The step's operations and memory without their times.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    model, gpus = _checked_model(scenario, fabric), placements(scenario, fabric)[0]
    return _lowered(
        scenario, model, fabric, fleet_of(fabric, gpu_of(fabric), gpus), gpus
    )


def _checked_model(scenario: Scenario, fabric: Fabric) -> ModelSpec:
    model = load_model(scenario.model, scenario.where)
    if huge := list(countable(scenario, model.layers)):
        raise InputError(huge)
    mistakes = check_layout(
        scenario, allotted(scenario, fabric), model
    ) + not_simulated(scenario)
    if mistakes:
        raise InputError(mistakes)
    return model


def _machine_and_chains(
    scenario: Scenario,
    graph: OpGraph,
    fabric: Fabric,
    gpu: Gpu,
    gpus: tuple[str, ...] | None,
) -> tuple[Machine, Chains]:
    chains = Chains(
        lambda inner: machine(scenario, inner, fabric, gpu, gpus, alone=True)
    )
    return machine(scenario, graph, fabric, gpu, gpus, chains), chains


def _lowered(
    scenario: Scenario,
    model: ModelSpec,
    fabric: Fabric,
    fleet: Fleet,
    gpus: tuple[str, ...],
) -> Lowered:
    site = _site(scenario, fabric, fleet, gpus)
    return framework_of(scenario).lower(scenario, model, site)


def _site(
    scenario: Scenario, fabric: Fabric, fleet: Fleet, gpus: tuple[str, ...]
) -> Site:
    """What lowering has to know of the cluster."""
    hosts = [fabric.host_of(gpu) for gpu in gpus]
    place = Place(hosts.count(hosts[0]), blocking=False)
    odd = unlike(fabric, fleet, scenario.faults, gpus)
    return Site(host_factor(scenario, fabric), place, fleet.speeds, odd)


def rerun(simulation: Simulation, fabric: Fabric) -> Simulation:
    """The same operations on the same cluster with other links: nothing is lowered again."""
    graph, steps = simulation.lowered.graph, simulation.run.end[0].shape[0]
    run_on, chains = _machine_and_chains(
        simulation.scenario, graph, fabric, simulation.gpu, simulation.gpus or None
    )
    return replace(
        simulation, fabric=fabric, run=execute(graph, run_on, steps), chains=chains
    )


def predict(scenario: Scenario, prices: bool = False) -> Result:
    """The predicted step of a scenario; see :class:`sim.analysis.prediction.Result`. Of several
    jobs: `sim.studies.shared_cluster.predict`.

    With `prices`, links have their shadow prices, where the cluster is small enough: see `sim.analysis.shadow_prices`.
    """
    from sim.analysis.report import result_of
    from sim.analysis.shadow_prices import affordable, shadow_prices

    simulation = simulate(scenario)
    return result_of(
        simulation,
        shadow_prices(simulation) if prices and affordable(simulation) else None,
    )


def step_time(scenario: Scenario) -> float:
    """Seconds of the predicted step alone, without timeline, memory and evidence."""
    from sim.analysis import report

    return report.step_time(simulate(scenario))


def load_fabric(scenario: Scenario) -> Fabric:
    """The cluster of a scenario with its changes and its routing."""
    from topologies import load_cluster
    from topologies.core.routing import Routing

    c = scenario.cluster
    fabric = load_cluster(
        c.file or c.name or "h200-host-4", hosts=c.hosts, overrides=c.set
    )
    return fabric.with_routing(
        Routing(
            c.routing, c.routing_seed, c.routing_flows, not scenario.nccl.pxn_disable
        )
    )


def host_factor(scenario: Scenario, fabric: Fabric) -> float:
    """How much slower this host runs framework code than the one on which its costs were fitted."""
    if scenario.cluster.host_factor is not None:
        return scenario.cluster.host_factor
    stated = fabric.cluster_facts.host_factor
    return 1.0 if stated is None else stated


def machine(
    scenario: Scenario,
    graph: OpGraph,
    fabric: Fabric,
    gpu: Gpu,
    gpus: tuple[str, ...] | None = None,
    chains: Chains | None = None,
    alone: bool = False,
) -> Machine:
    """Durations, interference and communication plans of a graph on a fabric; rank r is on ``gpus[r]``.

    ``alone``: it is a chain's own graph; that ranks wait for the slowest is counted in the graph that it is part of.
    """
    gpus = fabric.gpus if gpus is None else gpus
    framework = framework_of(scenario)
    kernels = graph.kernels
    p = scenario.parallel
    clock = gpu.crowded if p.dp * p.tp * p.pp * p.cp > 1 else 1.0

    def idle_time(k: Kernel | Chain) -> float:
        if isinstance(k, Chain):
            return chains.duration(k) if chains is not None else 0.0
        if k.kind == "spin":
            return k.shape[0] * 1e-9
        if k.kind == "fused" and framework.fused_load:
            return gpu.duration(k) * gpu.fused
        load = (
            clock * gpu.sustained(k) * gpu.toolkit(k, scenario.pytorch.cuda)
            if k.kind in CLOCKED
            else 1.0
        )
        return gpu.duration(k) * load

    duration = np.array([idle_time(k) for k in kernels])
    beside = laid_over(constants.of(fabric).tables.get("overlap", {}))

    @cache
    def slow(kernel: int, channels: int) -> float:
        k = kernels[kernel]
        if isinstance(k, Chain):
            return chains.slowdown(k, channels) if chains is not None else 1.0
        return beside.slowdown(k, channels, gpu.sms)

    known: dict[tuple[object, ...], Plan] = {}
    layout = framework.layout(scenario)

    def plan(comm: Comm) -> Plan:
        # NCCL chooses the channels of a transfer by its communicator: who is idle in it is named after the pair.
        key = (comm.op, comm.size, comm.groups, comm.axis, comm.in_place, comm.copied)
        if key in known:
            return known[key]
        plans = []
        for group in comm.groups:
            idle = (
                [r for r in layout.pipeline(group[0]) if r not in group]
                if comm.axis == "pp"
                else []
            )
            members = [gpus[r] for r in (*group, *idle)]
            plans.append(
                plan_collective(
                    comm.op, comm.size, members, fabric, scenario.nccl, comm.in_place
                )
            )
        merged = _merged(plans)
        known[key] = replace(merged, channels=0) if comm.copied else merged
        return known[key]

    captured = kernel_gap(scenario.training.framework)
    gap = gpu.gap if captured is None else min(gpu.gap, captured)
    gap = gap if scenario.cluster.kernel_gap is None else scenario.cluster.kernel_gap
    together = (
        1.0
        if alone
        else slowest_of(scenario.parallel.dp * scenario.parallel.tp, gpu.spread)
    )
    spins = [k.kind == "spin" for k in kernels]
    fleet = fleet_of(fabric, gpu_of(fabric), gpus)
    slow_rank = scenario.faults.slow_rank
    # Chains have been slowed where they were executed.
    factor = np.array(
        [1.0 if isinstance(k, Chain) else scenario.faults.slow_factor for k in kernels]
    )
    scale: dict[int, float | np.ndarray] = {}
    for program in graph.programs:
        rank = graph.pace.get(program.rank, program.rank)
        # Which rank is slow was said: it is a GPU like any other, not the slowest of all of them.
        ratio = fleet.scale(graph, rank, 1.0 if rank == slow_rank else together, spins)
        scale[program.rank] = ratio * factor if rank == slow_rank else ratio
    idle = frozenset(i for i, spin in enumerate(spins) if spin)
    grain = (
        {i: chains.grain(k) for i, k in enumerate(kernels) if isinstance(k, Chain)}
        if chains is not None
        else {}
    )
    rates = fabric.links.bandwidth
    other = {
        i: f
        for i, k in enumerate(kernels)
        if (f := beside.contention(k)) != beside.communication
    }
    hot = frozenset(
        i for i, k in enumerate(kernels) if not isinstance(k, Chain) and gpu.hot(k)
    )
    # A chain stands for the middle of a long step: what could be drawn beyond the limit was drawn before.
    budget = 0.0 if alone else None
    return Machine(
        duration,
        slow,
        plan,
        rates,
        beside.communication,
        gap,
        LAUNCH_LATENCY,
        scale,
        idle,
        grain=grain,
        beside=other,
        power=gpu.power,
        hot=hot,
        budget=budget,
    )


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
            found.append(
                Mistake(
                    where,
                    section,
                    "a section",
                    "nothing",
                    "not simulated for several jobs",
                )
            )
    if "inference" in sections_in_use(scenario):
        found.append(
            Mistake(
                where,
                "inference",
                "a section",
                "a training step here",
                "prestep run predicts serving",
            )
        )
    if "checkpoint" in sections_in_use(scenario):
        from sim.storage.checkpointing import mistakes_of

        found += mistakes_of(scenario)
    if "dataload" in sections_in_use(scenario):
        from sim.storage import feeding

        found += feeding.mistakes_of(scenario)
    return [*found, *refusals(scenario)]
