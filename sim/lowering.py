"""Lowers a scenario: to the operations of its step, and to the `Job` and the `Machine` that all later stages read.

This is the last stage that knows what a scenario's keys are.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from prestep.sim.analysis import effects
from prestep.sim.collectives.wires import paths, processes
from prestep.sim.costs import Gpu
from prestep.sim.costs.gpu_files import generation_of, known_capability
from prestep.sim.costs.measured import gpu_of
from prestep.sim.errors import InputError, Mistake
from prestep.sim.extras import lazily
from prestep.sim.planning import host_memory
from prestep.sim.planning.fleet import Fleet, fleet_of
from prestep.sim.planning.host_speed import HostSpeed
from prestep.sim.planning.job import Batch, Degrees, Job, Machine, Remarks
from prestep.sim.planning.symmetry import unlike
from prestep.sim.spec.lookup import allotted, placements
from prestep.sim.spec.rules.idle import idle
from prestep.sim.spec.rules.layout import check_layout, countable
from prestep.sim.spec.sections import Scenario
from prestep.topologies.fabric import Fabric
from prestep.topologies.host import LINKS
from prestep.workloads.frameworks import framework_of
from prestep.workloads.host_costs import kernel_gap
from prestep.workloads.job.layout import microbatches_of, shards_parameters
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.lowered import Lowered, Place, Site
from prestep.workloads.models.model import ModelSpec, load_model
from prestep.workloads.precision import names as precisions
from prestep.workloads.precision import precision
from prestep.workloads.refusals import refusals
from prestep.workloads.torch.attention_backend import backend_of, settled
from prestep.workloads.torch.expert_backend import experts_of

with lazily():
    from prestep.topologies.show import summary

_log = logging.getLogger("prestep")
#: Frameworks that tell ranks apart by what is known of their GPUs and hosts.
BY_HOST = ("pytorch-eager", "pytorch-compiled", "cuda-graph")


class Step(NamedTuple):
    """A step without times, and all that is known of who runs it on what."""

    job: Job
    machine: Machine
    model: ModelSpec
    lowered: Lowered


def lower(
    scenario: Scenario,
    fabric: Fabric,
    gpus: tuple[str, ...] | None = None,
    lowered: Lowered | None = None,
) -> Step:
    """The step of one job on its cluster; see `prestep.sim.predict.plan`."""
    model = _checked_model(scenario, fabric)
    machine = machine_of(scenario, model, fabric, gpus)
    lowered = _operations(scenario, model, machine, lowered)
    return Step(job_of(scenario, model, machine, lowered), machine, model, lowered)


def lowered_on(
    scenario: Scenario, fabric: Fabric, machine: Machine | None = None
) -> Lowered:
    """The step's operations and memory without their times; `machine`: what it runs on, where that is known.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    model = _checked_model(scenario, fabric)
    machine = machine or machine_of(scenario, model, fabric)
    return _operations(scenario, model, machine)


def _operations(
    scenario: Scenario,
    model: ModelSpec,
    machine: Machine,
    lowered: Lowered | None = None,
) -> Lowered:
    """What every rank issues; of `lowered` where that was made for the same hosts and GPUs."""
    _check_format(scenario, machine.gpu)
    framework, stated = framework_of(scenario), scenario.cluster.host_factor_by_rank
    hosts = [*_host_ratios(stated, machine.fabric, machine.gpus)]
    site = _site(scenario, model, machine, hosts)
    made_for = (site.host_factor, framework.marks(site))
    same = lowered is not None and lowered.made_for == made_for
    chosen = site.attention, site.experts
    if lowered is not None and same and lowered.chosen == chosen:
        return lowered
    _log.info("%s: lowering the step", scenario.where)
    lowered = framework.lower(settled(scenario, *chosen), model, site)
    return _by_rank(replace(lowered, chosen=chosen), hosts)


def machine_of(
    scenario: Scenario,
    model: ModelSpec,
    fabric: Fabric,
    gpus: tuple[str, ...] | None = None,
) -> Machine:
    """What a scenario runs on; `gpus` of every rank, where the placement does not say."""
    gpus = placements(scenario, fabric)[0] if gpus is None else gpus
    fleet = fleet_of(fabric, gpu_of(fabric), gpus)
    cluster, parallel = scenario.cluster, scenario.parallel
    threads = parallel.offload_threads or host_memory.usual_threads(fabric, gpus)
    return Machine(
        fabric=fabric,
        fleet=fleet,
        gpus=gpus,
        place=place_of(fabric, gpus),
        memory_rate=_memory_rate(fabric),
        nccl=scenario.nccl,
        toolkit=scenario.pytorch.cuda,
        host=host_speed(scenario, model, fabric),
        copies=host_memory.Settings(cluster.numa, threads, parallel.offload_pinned),
        host_memory=cluster.host_memory,
        kernel_gap=_kernel_gap(scenario, fleet),
        faults=scenario.faults,
    )


def host_speed(scenario: Scenario, model: ModelSpec, fabric: Fabric) -> HostSpeed:
    """The scenario's own, else the cluster's: of experts where it says one and the model has some."""
    own = scenario.cluster.host_factor
    facts = fabric.cluster_facts
    numa = scenario.cluster.numa
    if own is not None:
        return HostSpeed(own, "scenario", numa)
    by_experts = facts.host_factor_experts is not None and model.experts > 0
    stated = facts.host_factor_experts if by_experts else facts.host_factor
    return HostSpeed(stated, "" if stated is None else "cluster", numa)


def _kernel_gap(scenario: Scenario, fleet: Fleet) -> float:
    """Seconds between two kernels of a stream."""
    if scenario.cluster.kernel_gap is not None:
        return scenario.cluster.kernel_gap
    graphed = kernel_gap(scenario.training.framework)
    return fleet.gpu.gap if graphed is None else min(fleet.gpu.gap, graphed)


def job_of(
    scenario: Scenario, model: ModelSpec, machine: Machine, lowered: Lowered
) -> Job:
    """What a scenario runs, once its step is known."""
    training, parallel = scenario.training, scenario.parallel
    framework, adapted = framework_of(scenario), scenario.adapter.on
    graphs = scenario.megatron.cuda_graph_scope
    in_megatron = training.framework == "megatron"
    seen = min(training.packed or training.seq_len, training.seq_len)
    return Job(
        where=scenario.where,
        framework=training.framework,
        precision=training.precision,
        optimizer=training.optimizer,
        data_parallel=parallel.data_parallel or "none",
        degrees=Degrees(*(getattr(parallel, axis) for axis in Degrees._fields)),
        batch=Batch(
            training.micro_batch, microbatches_of(scenario), training.seq_len, seen
        ),
        layout=lowered.layout,
        steps=framework.steps,
        warmup=training.warmup,
        sharded=shards_parameters(scenario),
        master=framework.master,
        wide_moments=framework.master or scenario.pytorch.wide_moments,
        frozen=adapted,
        joined_load=framework.fused_load,
        # Megatron refuses one connection where parameters are sharded (arguments.py: FSDP requires more than one).
        in_order=in_megatron
        and scenario.megatron.device_connections == 1
        and not shards_parameters(scenario),
        captured=in_megatron and "full_iteration" in graphs,
        routed_freely=_routed_freely(scenario),
        remarks=_remarks(scenario, model, machine),
        sections=scenario.extensions,
        measured=scenario.measured.step_time,
        fitted=scenario.measured.fitted,
    )


def _routed_freely(scenario: Scenario) -> Literal["", "balanced", "assumed"]:
    parallel = scenario.parallel
    if not parallel.natural_routing or parallel.ep == 1:
        return ""
    return "balanced" if parallel.imbalance == "uniform" else "assumed"


def _remarks(scenario: Scenario, model: ModelSpec, machine: Machine) -> Remarks:
    return Remarks(
        scenario.notes,
        tuple(idle(scenario, model, machine.hosts)),
        tuple(framework_of(scenario).caveats(scenario, model)),
    )


def _checked_model(scenario: Scenario, fabric: Fabric) -> ModelSpec:
    model = load_model(scenario.model, scenario.where)
    InputError.check(list(countable(scenario, model.layers)))
    mistakes = check_layout(
        scenario, allotted(scenario, fabric), model
    ) + not_simulated(scenario)
    InputError.check(mistakes)
    return model


def _check_format(scenario: Scenario, gpu: Gpu) -> None:
    """Refuses a number format that a GPU's tensor cores do not have: nobody would wait for it to be emulated."""
    name = scenario.training.precision
    if _computes(gpu, name):
        return
    known = [other for other in precisions() if _computes(gpu, other)]
    hint = f"the {gpu.name} computes no {precision(name).products}"
    expected = " or ".join(known)
    where = scenario.where
    raise InputError.of(where, "training.precision", f'"{name}"', expected, hint)


def _computes(gpu: Gpu, name: str) -> bool:
    products = precision(name).products
    return not products or products in gpu.peak


def _site(
    scenario: Scenario, model: ModelSpec, machine: Machine, hosts: Sequence[float]
) -> Site:
    """What lowering has to know of the machine; `hosts` has the ratio of every rank's host."""
    fabric, gpus = machine.fabric, machine.gpus
    if fabric.numa != processes.LOCAL:
        processes.memory_of(fabric, gpus[0])  # whether there is another socket
    read, gpu = framework_of(scenario).reads(PyTorch), machine.gpu.name
    capability = known_capability(gpu)
    return Site(
        host_factor=machine.host.factor,
        place=machine.place,
        speeds=_speeds(scenario, machine, hosts),
        unlike=unlike(fabric, machine.fleet, machine.faults, gpus),
        workspace=float(generation_of(gpu).workspace),
        operators=_operator_times(scenario),
        host_memory=machine.memory_rate / machine.place.gpus_per_host,
        attention=backend_of(scenario, model, capability, read),
        experts=experts_of(scenario, capability),
        capability=capability,
    )


def place_of(fabric: Fabric, gpus: Sequence[str]) -> Place:
    """How ranks on these GPUs share hosts, links above them, and NVLink domains."""
    hosts, domains = fabric.hosts_of(gpus), paths.domains(fabric)
    each, numbers = hosts.count(hosts[0]), {host: at for at, host in enumerate(hosts)}
    filled = {(host, rank // each) for rank, host in enumerate(hosts)}
    scattered = len(filled) > len(numbers)
    tiers = summary.oversubscription(fabric) if len(numbers) > 1 else ()
    nvlink = tuple(domains[gpu] for gpu in gpus)
    racks = len({*nvlink}) < len(numbers)  # hosts whose GPUs NVSwitches join
    return Place(
        gpus_per_host=each,
        blocking=any(tier.most > 1.0 + 1e-9 for tier in tiers),
        hosts=tuple(numbers[host] for host in hosts) if scattered else (),
        nvlink=nvlink if racks else (),
    )


def _operator_times(scenario: Scenario) -> Mapping[str, float]:
    """Seconds of operators, as [costs.operators] has them and the framework reads them."""
    stated, of = scenario.costs.operators, framework_of(scenario).operator_times
    if not stated:
        return {}
    if of is None:
        expected = "a program that `prestep capture` recorded"
        found = ", ".join(stated)
        raise InputError(scenario.mistake("costs.operators", expected, found=found))
    return of(scenario, stated)


def _host_ratios(
    stated: Sequence[float], fabric: Fabric, gpus: Sequence[str]
) -> Iterator[float]:
    """For every rank its host's time over `host_factor`; none where nothing is stated.

    Ranks of a host take them in turn, those of the next host from the first.
    """
    seen: dict[str, int] = {}
    for gpu in gpus if stated else ():
        host = fabric.host_of(gpu)
        at = seen[host] = seen.get(host, -1) + 1
        yield stated[at % len(stated)]


def _by_rank(lowered: Lowered, hosts: Sequence[float]) -> Lowered:
    """The step with the host's times of every simulated rank as its own host takes them; none: all are alike."""
    if not hosts:
        return lowered
    programs = tuple(
        replace(program, host=program.host * hosts[program.rank])
        for program in lowered.graph.programs
    )
    graph = replace(lowered.graph, programs=programs)
    return replace(lowered, graph=graph, hosts=tuple(hosts))


def _speeds(
    scenario: Scenario, machine: Machine, hosts: Sequence[float]
) -> Sequence[Hashable]:
    """What tells ranks apart: their GPUs, and how fast their hosts are."""
    speeds = machine.fleet.speeds
    if len(set(hosts)) < 2:
        return speeds
    framework = scenario.training.framework
    if framework not in BY_HOST:
        key, expected = "cluster.host_factor_by_rank", f"one of {', '.join(BY_HOST)}"
        hint = "host_factor is that of the slowest rank, for which the others wait"
        raise InputError.of(scenario.where, key, framework, expected, hint)
    return tuple(zip(speeds or [None] * len(hosts), hosts, strict=True))


def _memory_rate(fabric: Fabric) -> float:
    """Bytes a second that a host's memory gives; of one socket where the cluster says nothing."""
    kinds, rows = fabric.nodes.kinds, fabric.links.of_kind("memory")
    src = fabric.ends[0][rows].tolist()
    out = [row for row, at in zip(rows, src, strict=True) if kinds[at] == "memory"]
    if not out:
        return LINKS["memory"].bandwidth.value
    return float(fabric.links.bandwidth[out].sum()) / len(fabric.hosts)


def not_simulated(scenario: Scenario) -> list[Mistake]:
    """Sections and values that are understood but not simulated here are refused, not ignored."""
    where, sections = scenario.where, scenario.extensions
    mistakes = effects.mistakes_of(sections, where, several=bool(scenario.name))
    if scenario.other_run is not None:
        name, section = scenario.other_run
        expected = "a training step here"
        mistakes.append(Mistake(where, name, "a section", expected, section.COMMANDS))
    return [*mistakes, *refusals(scenario)]
