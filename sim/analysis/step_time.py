"""The step time of a run: the longest of its ranks', with the data that every step waits for."""

from __future__ import annotations

from prestep.sim.analysis.step_times import by_rank, longest, median
from prestep.sim.engine.execution import Run
from prestep.sim.planning.planned import Planned
from prestep.sim.storage.feeding import with_data


def step_time(planned: Planned, run: Run) -> float:
    """Seconds of the last step with its data; of a step with noise, the median over its ranks."""
    times = by_rank(planned.graph, run).values()
    computed = longest(times) if planned.noise is None else median(times)
    data = with_data(planned, run, computed)
    return computed if data is None else float(data["step_time_with"])
