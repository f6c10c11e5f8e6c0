"""Predicts a training step: scenario -> lowered -> planned -> run -> prediction.

Every arrow is a function here, and `predict` is the walk along them. Who changes a part of a scenario keeps the values
before that part and begins there: `plan` takes a step that was lowered, `execute` one that was planned.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from prestep.sim.analysis.caveats import is_unsteady
from prestep.sim.analysis.effects import step_time as time_of
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.report import report
from prestep.sim.analysis.shadow_prices import affordable, shadow_prices
from prestep.sim.engine import engine
from prestep.sim.engine.execution import Run
from prestep.sim.lowering import lower
from prestep.sim.planning.planned import KernelTimes, Planned, kernel_times, planned
from prestep.sim.spec.jobs import refuse
from prestep.sim.spec.sections import Scenario
from prestep.sim.tools.process import with_room
from prestep.topologies import load_cluster
from prestep.topologies.core.routing import Routing
from prestep.topologies.fabric import Fabric
from prestep.workloads.lowered import Lowered

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
    return with_request(scenario, reported(planned, execute(planned), prices))


def with_request(scenario: Scenario, result: Prediction) -> Prediction:
    """The prediction with what was asked for, for whoever asks again with changes."""
    details = result.details
    return replace(result, details=details and replace(details, request=scenario))


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
    return planned(*lower(scenario, fabric, gpus, lowered))


def execute(planned: Planned) -> Run:
    """As many steps as bring the last one to its steady state."""
    graph, steps = planned.graph, min(STEPS, planned.job.steps)
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


def timed_kernels(scenario: Scenario, fabric: Fabric) -> tuple[Lowered, KernelTimes]:
    """The lowered step and what its kernels take; communications are not planned.

    Raises
    ------
    InputError
        If the layout does not fit the cluster or the model, or asks for what is not simulated.
    """
    step = lower(scenario, fabric)
    times = kernel_times(step.job, step.machine, step.lowered.graph)
    return step.lowered, times


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
