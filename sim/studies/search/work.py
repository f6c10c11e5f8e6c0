"""What a search asks of its processes: functions of a layout, or of a family of them."""

from __future__ import annotations

import math

from prestep.sim.analysis.effects import step_time
from prestep.sim.analysis.energy import energy_of, host_power, shares_of
from prestep.sim.analysis.kernels import kernel_uses
from prestep.sim.analysis.memory import needed
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs import load_gpu
from prestep.sim.costs.draw import wall
from prestep.sim.engine.execution import Run
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, plan, reported
from prestep.sim.studies.search.bounds import Bound, Work, bound, of_few, quick
from prestep.sim.studies.search.space import Candidate, Clusters

_CLUSTERS = Clusters()  # of this process


def quickly(candidate: Candidate) -> Work:
    """What bounds the time; nothing where a fraction of the work is refused."""
    try:
        return quick(candidate.scenario, _CLUSTERS.fabric(candidate.scenario))
    except InputError:
        return Work()


def bounded(candidate: Candidate) -> Bound | None:
    """Bounds of a layout; None if it is refused when its step is recorded."""
    try:
        return bound(candidate.scenario, _CLUSTERS.fabric(candidate.scenario))
    except InputError:
        return None


def closely(candidate: Candidate) -> float:
    """A close bound on the time; 0 where a few microbatches are refused."""
    try:
        return of_few(candidate.scenario, _CLUSTERS.fabric(candidate.scenario))
    except PrestepError:
        return 0.0


def with_watts(candidate: Candidate) -> tuple[float, float, float, str]:
    """As `simulated`, with what the step draws."""
    return simulated(candidate, watts=True)


def simulated(
    candidate: Candidate, watts: bool = False
) -> tuple[float, float, float, str]:
    """Seconds and `watts` of a step, bytes of the fullest rank and their largest owner; inf for one that is refused.

    Watts are those of the whole cluster, nan where they were not asked for or nobody says what its GPUs draw.
    """
    try:
        planned = plan(candidate.scenario, _CLUSTERS.fabric(candidate.scenario))
        run = execute(planned)
        time = step_time(planned, run)
    except PrestepError:
        return float("inf"), math.nan, 0.0, ""
    drawn = drawn_in(planned, run, time) if watts else math.nan
    return time, drawn, *needed(planned, time)


def drawn_in(planned: Planned, run: Run, time: float) -> float:
    """Watts of all GPUs, hosts and switches in a step of so many seconds; nan where nobody says."""
    shares = shares_of(planned, run, kernel_uses(planned, run))
    energy = energy_of(planned, shares, time, 0.0)
    return math.nan if energy is None else energy.total_power


def least_watts(candidate: Candidate) -> float:
    """What the hosts of a layout draw at least: their GPUs wait all the time. 0 where nobody says what they draw."""
    fabric = _CLUSTERS.fabric(candidate.scenario)
    gpu = load_gpu(fabric.gpu_model)
    gpus = world_of(candidate)
    if gpu.draw is None:
        return 0.0
    return host_power(gpu.draw.idle, gpus, wall(bool(fabric.cluster_facts.liquid)))


def world_of(candidate: Candidate) -> int:
    """GPUs of a layout."""
    p = candidate.scenario.parallel
    return p.dp * p.tp * p.pp * p.cp


def result(candidate: Candidate) -> Prediction:
    planned = plan(candidate.scenario, _CLUSTERS.fabric(candidate.scenario))
    return reported(planned, execute(planned))
