"""Replicas of a step with noise: the distribution of its time, and the mean with its confidence interval.

A replica is the whole run again, first steps and all, with its own draws (`prestep.sim.planning.noise`); its last
step counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prestep.sim import progress
from prestep.sim.analysis.effects import step_time
from prestep.sim.engine.engine import execute
from prestep.sim.planning.jitter import jitter_of
from prestep.sim.planning.noise import noise_of
from prestep.sim.planning.planned import Planned
from prestep.sim.studies.statistics import CONFIDENCE, interval_of

PERCENTILES = (5, 25, 50, 75, 95, 99)


def replicas_of(
    planned: Planned, steps: int, step: float, replicas: int, seed: int
) -> dict[str, Any]:
    """Step times of the replicas (s, in their order) and what they amount to; `step` is without noise.

    Each executes as many `steps` as the run without noise.
    """
    times = step_times(planned, steps, step, replicas, seed)
    return summary(times, step, seed) | {
        "jitter": jitter_of(planned.machine.faults, planned.job.where).to_dict(),
        "step_times": times,
    }


def step_times(
    planned: Planned, steps: int, step: float, replicas: int, seed: int
) -> list[float]:
    """The step time of every replica, s."""
    jitter = jitter_of(planned.machine.faults, planned.job.where)
    if jitter.silent:
        return [step] * replicas  # without noise every run is the plain one
    times = []
    for at in progress.track(range(replicas), "replicas"):
        drawn = (jitter, planned.graph, planned.durations, steps, (seed, at), step)
        noise = noise_of(*drawn)
        noisy = replace(planned, noise=noise)
        times.append(step_time(noisy, execute(noisy, steps)))
    return times


def summary(times: Sequence[float], step: float, seed: int) -> dict[str, Any]:
    """Mean with its confidence interval, spread and percentiles of step times (s)."""
    mean, half = interval_of(times)
    spread = statistics.stdev(times) if len(times) > 1 else math.nan
    return {
        "replicas": len(times),
        "seed": seed,
        "confidence": CONFIDENCE,
        "mean": mean,
        "half_width": half,
        "low": mean - half,
        "high": mean + half,
        "std": spread,
        "min": min(times),
        "max": max(times),
        "percentiles": {f"p{p}": float(np.percentile(times, p)) for p in PERCENTILES},
        "slower": mean / step - 1.0,
    }
