"""The step time of a run: the median over its ranks, with the data that every step waits for."""

from __future__ import annotations

from sim.analysis.step_times import by_rank, median
from sim.engine.execution import Run
from sim.planning.planned import Planned
from sim.storage.feeding import with_data


def step_time(planned: Planned, run: Run) -> float:
    """Seconds of the last step with its data."""
    computed = median(by_rank(planned.graph, run).values())
    data = with_data(planned, run, computed)
    return computed if data is None else float(data["step_time_with"])
