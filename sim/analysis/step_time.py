"""The step time of a run: the longest of its ranks', with what every step waits for."""

from __future__ import annotations

from prestep.sim.analysis.effects import delays_of
from prestep.sim.analysis.step_times import by_rank, longest, median
from prestep.sim.engine.execution import Run
from prestep.sim.planning.planned import Planned


def step_time(planned: Planned, run: Run) -> float:
    """Seconds of the last step with its delays; of a step with noise, the median over its ranks."""
    times = by_rank(planned.graph, run).values()
    computed = longest(times) if planned.noise is None else median(times)
    delays = [*delays_of(planned, run, computed).values()]
    return delays[-1].step_time if delays else computed
