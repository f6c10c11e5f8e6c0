"""Predicts a training step: scenario -> lowered -> planned -> run -> prediction.

Every arrow is a function here, and `predict` is the walk along them. Who changes a part of a scenario keeps the values
before that part and begins there: `plan` takes a step that was lowered, `execute` one that was planned.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.report import report
from prestep.sim.analysis.shadow_prices import affordable, shadow_prices
from prestep.sim.analysis.step_time import step_time as time_of
from prestep.sim.analysis.unsteady import is_unsteady
from prestep.sim.collectives.wires import paths, processes
from prestep.sim.costs import Gpu
from prestep.sim.costs.gpu_files import generation_of, known_capability
from prestep.sim.costs.measured import gpu_of
from prestep.sim.costs.workspace import workspace_of
from prestep.sim.engine import engine
from prestep.sim.engine.execution import Run
from prestep.sim.errors import InputError, Mistake
from prestep.sim.planning import host_speed, numa
from prestep.sim.planning.fleet import fleet_of
from prestep.sim.planning.host_ranks import by_rank, with_hosts
from prestep.sim.planning.planned import KernelTimes, Planned, kernel_times, planned
from prestep.sim.planning.symmetry import unlike
from prestep.sim.spec.captured import operator_times
from prestep.sim.spec.jobs import refuse
from prestep.sim.spec.load import sections_in_use
from prestep.sim.spec.placing import allotted, placements
from prestep.sim.spec.rules.layout import check_layout, countable
from prestep.sim.spec.sections import Scenario
from prestep.sim.storage import feeding, refused_saves
from prestep.sim.tools.stack import with_room
from prestep.topologies import load_cluster
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric
from prestep.topologies.host import MEMORY
from prestep.workloads.frameworks import framework_of
from prestep.workloads.lowered import Lowered, Place, Site
from prestep.workloads.models.model import ModelSpec, load_model
from prestep.workloads.precision import names as precisions
from prestep.workloads.precision import precision
from prestep.workloads.refusals import refusals
from prestep.workloads.torch.attention_backend import backend_of, settled

_log = logging.getLogger("prestep")
STEPS = 3  # simulated as a rule; the last is reported
# Steps simulated where that one is not steady yet, until one is: a pipeline may need some dozens (guess).
MORE_STEPS = (12, 48)
# Operations of all steps together up to which that is tried: some seconds.
MOST_OPERATIONS = 400_000


def predict(scenario: Scenario, prices: bool = False) -> Prediction:
    """The predicted step of a scenario. Of several jobs: `prestep.sim.studies.shared_cluster.predict`.

    With `prices`, links have their shadow prices, where the cluster is small enough: see
    `prestep.sim.analysis.shadow_prices`.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    planned = plan(scenario)
    return reported(planned, execute(planned), prices)


def reported(planned: Planned, run: Run, prices: bool = False) -> Prediction:
    """The prediction of a step that was executed; see `predict`."""
    return report(
        planned,
        run,
        shadow_prices(planned, run) if prices and affordable(planned.fabric) else None,
    )


def step_time(scenario: Scenario) -> float:
    """Seconds of the predicted step alone, without timeline, memory and evidence."""
    planned = plan(scenario)
    return time_of(planned, execute(planned))


@with_room
def plan(
    scenario: Scenario,
    fabric: Fabric | None = None,
    gpus: tuple[str, ...] | None = None,
    lowered: Lowered | None = None,
) -> Planned:
    """The step of one job on its cluster.

    Parameters
    ----------
    fabric
        The cluster with its changes, where it was built before.
    gpus
        Of every rank, where the placement does not say.
    lowered
        The same work as it was lowered on another cluster. It is lowered again all the same where other GPUs are unlike
        than there, or hosts slower.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    refuse(scenario, "one simulation")
    fabric = fabric or load_fabric(scenario)
    model = _checked_model(scenario, fabric)
    gpus = placements(scenario, fabric)[0] if gpus is None else gpus
    site = _site(scenario, model, fabric, gpus)
    made_for = (site.host_factor, framework_of(scenario).marks(site))
    same = lowered is not None and lowered.made_for == made_for
    if lowered is None or not same or lowered.attention != site.attention:
        _log.info("%s: lowering the step", scenario.where)
        lowered = _lowered(scenario, model, site, fabric, gpus)
    return planned(scenario, model, lowered, fabric, gpus)


def execute(planned: Planned) -> Run:
    """As many steps as bring the last one to its steady state."""
    graph, steps = planned.graph, min(STEPS, framework_of(planned.scenario).steps)
    run = _execute(planned, steps)
    for more in MORE_STEPS:
        affordable = more * graph.operations <= MOST_OPERATIONS
        if not affordable or planned.noise is not None or not is_unsteady(graph, run):
            break
        run = _execute(planned, more)
    return run


def _execute(planned: Planned, steps: int) -> Run:
    """A run of so many steps, which the log tells of."""
    graph = planned.graph
    counts = graph.operations, len(graph.programs), steps
    _log.info("executing %d operations of %d simulated ranks, %d steps", *counts)
    run = engine.execute(planned, steps)
    _log.info("executed: the steps end at %.6g s", run.finished)
    return run


def lowered_on(scenario: Scenario, fabric: Fabric) -> Lowered:
    """The step's operations and memory without their times.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    model, gpus = _checked_model(scenario, fabric), placements(scenario, fabric)[0]
    site = _site(scenario, model, fabric, gpus)
    return _lowered(scenario, model, site, fabric, gpus)


def _lowered(
    scenario: Scenario,
    model: ModelSpec,
    site: Site,
    fabric: Fabric,
    gpus: tuple[str, ...],
) -> Lowered:
    job = settled(scenario, site.attention)
    lowered = framework_of(scenario).lower(job, model, site)
    lowered = replace(lowered, attention=site.attention)
    return by_rank(lowered, scenario, fabric, gpus)


def timed_kernels(scenario: Scenario, fabric: Fabric) -> tuple[Lowered, KernelTimes]:
    """The lowered step and what its kernels take; communications are not planned.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    lowered, gpus = lowered_on(scenario, fabric), placements(scenario, fabric)[0]
    return lowered, kernel_times(scenario, lowered, fabric, gpus)


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


def _check_format(scenario: Scenario, gpu: Gpu) -> None:
    """Refuses a number format that a GPU's tensor cores do not have: nobody would wait for it to be emulated."""
    name = scenario.training.precision
    if _computes(gpu, name):
        return
    known = [other for other in precisions() if _computes(gpu, other)]
    hint = f"the {gpu.name} computes no {precision(name).products}"
    expected = " or ".join(known)
    where = scenario.where
    raise InputError(Mistake(where, "training.precision", f'"{name}"', expected, hint))


def _computes(gpu: Gpu, name: str) -> bool:
    products = precision(name).products
    return not products or products in gpu.peak


def _site(
    scenario: Scenario, model: ModelSpec, fabric: Fabric, gpus: tuple[str, ...]
) -> Site:
    """What lowering has to know of the cluster."""
    fleet = fleet_of(fabric, gpu_of(fabric), gpus)
    _check_format(scenario, fleet.gpu)
    processes.memory_of(fabric, gpus[0])  # whether there is such a socket
    hosts = [fabric.host_of(gpu) for gpu in gpus]
    domains = paths.domains(fabric)
    joined = sum(domains[gpu] == domains[gpus[0]] for gpu in gpus)
    place = Place(hosts.count(hosts[0]), blocking=False, gpus_per_domain=joined)
    odd = unlike(fabric, fleet, scenario.faults, gpus)
    workspace = workspace_of(generation_of(fleet.gpu.name))
    factor, times = host_factor(scenario, fabric), operator_times(scenario)
    memory = _host_memory(fabric) / place.gpus_per_host
    speeds = with_hosts(fleet.speeds, scenario, fabric, gpus)
    keys, one = framework_of(scenario).read_keys("pytorch"), fleet.gpu.name
    attention = backend_of(scenario, model, known_capability(one), keys)
    return Site(factor, place, speeds, odd, workspace, times, memory, attention)


def _host_memory(fabric: Fabric) -> float:
    """Bytes a second that a host's memory gives; of one socket where the cluster says nothing."""
    out = [row for row in fabric.links.of_kind("memory") if _leaves_memory(fabric, row)]
    if not out:
        return MEMORY.bandwidth.value
    return float(fabric.links.bandwidth[out].sum()) / len(fabric.hosts)


def _leaves_memory(fabric: Fabric, link: int) -> bool:
    source = fabric.links.src[link]
    return fabric.nodes.kinds[fabric.node_index(source)] == "memory"


def load_fabric(scenario: Scenario) -> Fabric:
    """The cluster of a scenario with its changes and its routing."""
    c = scenario.cluster
    fabric = load_cluster(
        c.file or c.name or "h200-host-4", hosts=c.hosts, overrides=c.set
    )
    return fabric.with_routing(
        Routing(
            c.routing, c.routing_seed, c.routing_flows, not scenario.nccl.pxn_disable
        )
    ).with_processes(c.numa)


def host_factor(scenario: Scenario, fabric: Fabric) -> float:
    """How much slower this host runs framework code than the one on which its costs were fitted."""
    stated = host_speed.stated(scenario, fabric)
    return (1.0 if stated is None else stated) * numa.host_ratio(scenario)


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
    if "rl" in sections_in_use(scenario):
        hint = "prestep run and whatif predict steps of reinforcement learning"
        expected = "a training step here"
        found.append(Mistake(where, "rl", "a section", expected, hint))
    if "checkpoint" in sections_in_use(scenario):
        found += refused_saves.mistakes_of(scenario)
    if "dataload" in sections_in_use(scenario):
        found += feeding.mistakes_of(scenario)
    return [*found, *refusals(scenario)]
