"""What a search asks of its processes: functions of a layout, or of a family of them."""

from __future__ import annotations

from collections.abc import Sequence

from sim.analysis.memory import needed
from sim.analysis.prediction import Prediction
from sim.analysis.step_time import step_time
from sim.costs import load_gpu
from sim.errors import InputError, PrestepError
from sim.predict import execute, plan, reported
from sim.studies.search.bounds import Bound, bound, quick
from sim.studies.search.space import Candidate, Clusters

_CLUSTERS = Clusters()  # of this process


def quickly(candidate: Candidate) -> float:
    """A bound on the time; 0 where a fraction of the work is refused."""
    try:
        return quick(candidate.scenario, _CLUSTERS.fabric(candidate.scenario))
    except InputError:
        return 0.0


def limited(family: Sequence[Candidate]) -> list[tuple[int, Bound]]:
    """Bounds that tell how many members of a family fit, in which only the micro batch grows: found by bisection."""
    capacity = load_gpu(_CLUSTERS.fabric(family[0].scenario).gpu_model).memory
    found: list[tuple[int, Bound]] = []
    low, high, at = (
        0,
        len(family),
        0,
    )  # those before `low` fit, those from `high` on do not
    while low < high:
        one = bounded(family[at])
        if one is not None:
            found.append((at, one))
        low, high = (
            (low, at) if one is not None and one.memory > capacity else (at + 1, high)
        )
        at = (low + high) // 2
    return found


def bounded(candidate: Candidate) -> Bound | None:
    """Bounds of a layout; None if it is refused when its step is recorded."""
    try:
        return bound(candidate.scenario, _CLUSTERS.fabric(candidate.scenario))
    except InputError:
        return None


def simulated(candidate: Candidate) -> tuple[float, float, str]:
    """Seconds of a step, bytes of the fullest rank and their largest owner; inf for one that is refused."""
    try:
        planned = plan(candidate.scenario, _CLUSTERS.fabric(candidate.scenario))
        time = step_time(planned, execute(planned))
    except PrestepError:
        return float("inf"), 0.0, ""
    return time, *needed(planned, time)


def result(candidate: Candidate) -> Prediction:
    planned = plan(candidate.scenario, _CLUSTERS.fabric(candidate.scenario))
    return reported(planned, execute(planned))
