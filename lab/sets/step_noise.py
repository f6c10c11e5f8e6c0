"""The noise of published steps: percentiles that a log gives, and replicas of the prediction.

A log has outliers (data, evaluation, checkpoints); the spread is taken between its 10th and 90th percentile, which are
2.563 standard deviations of a normal distribution apart.
"""

from __future__ import annotations

import re
import statistics
import zlib
from collections.abc import Mapping
from typing import Any

from prestep.sim import predict
from prestep.sim.analysis.effects import step_time
from prestep.sim.spec.load import parse_scenario
from prestep.sim.studies.replicas import step_times

LOGGED = re.compile(r"median of \d+ logged steps; p10 ([\d.]+) p90 ([\d.]+)")
BETWEEN = 2.563


def measured(row: Mapping[str, str]) -> float | None:
    """The relative standard deviation of a row's logged steps; None where it does not give percentiles."""
    logged = LOGGED.search(row.get("notes", ""))
    if logged is None or row["metric_name"] != "step_time":
        return None
    low, high = (float(text.rstrip(".")) for text in logged.groups())
    return (high - low) / BETWEEN / float(row["metric_value"])


def predicted(scenario: Mapping[str, Any], where: str, replicas: int) -> float:
    """The relative standard deviation of replicas of a scenario's step.

    Raises
    ------
    PrestepError
        If it cannot be predicted.
    """
    planned = predict.plan(parse_scenario(scenario, where))
    run = predict.execute(planned)
    time = step_time(planned, run)
    seed = zlib.crc32(where.encode())  # rows do not share their draws
    times = step_times(planned, run.steps, time, replicas, seed)
    return statistics.stdev(times) / statistics.mean(times)
