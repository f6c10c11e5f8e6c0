"""Replicas of a step with noise: the distribution of its time, and the mean with its confidence interval.

A replica is the whole run again, first steps and all, with its own draws (`sim.planning.noise`); its last step counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sim import progress
from sim.analysis.step_time import step_time
from sim.engine.engine import execute
from sim.planning.noise import jitter_of, noise_of
from sim.planning.planned import Planned
from sim.reliability.statistics import CONFIDENCE, interval_of
from sim.units import format_duration

PERCENTILES = (5, 25, 50, 75, 95, 99)


def replicas_of(
    planned: Planned, steps: int, step: float, replicas: int, seed: int
) -> dict[str, Any]:
    """Step times of the replicas (s, in their order) and what they amount to; `step` is without noise.

    Each executes as many `steps` as the run without noise.
    """
    times = step_times(planned, steps, step, replicas, seed)
    return summary(times, step, seed) | {
        "jitter": jitter_of(planned.scenario.faults, planned.scenario.where).to_dict(),
        "step_times": times,
    }


def step_times(
    planned: Planned, steps: int, step: float, replicas: int, seed: int
) -> list[float]:
    """The step time of every replica, s."""
    jitter = jitter_of(planned.scenario.faults, planned.scenario.where)
    if jitter.silent:
        return [step] * replicas  # without noise every run is the plain one
    times = []
    for at in progress.track(range(replicas), "replicas"):
        noise = noise_of(jitter, planned.graph, planned.durations, steps, (seed, at))
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


def words(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows (what, how much) for people."""
    return [
        *_distribution(table),
        ("noise", ", ".join(_noise(table["jitter"]))),
        ("replicas", f"{table['replicas']}, seed {table['seed']}"),
    ]


def _distribution(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of the mean and, of several replicas, of what lies around it."""
    mean = format_duration(table["mean"])
    slower = f"{100 * table['slower']:+.2f} % on the step without noise"
    if table["replicas"] == 1:
        yield "mean step", f"{mean}, {slower}"
        return
    half = format_duration(table["half_width"])
    yield "mean step", f"{mean} ± {half} (95 % confidence), {slower}"
    share = 100 * table["std"] / table["mean"]
    yield "standard deviation", f"{format_duration(table['std'])}, {share:.2f} %"
    low, median, high = (
        format_duration(table["percentiles"][name]) for name in ("p5", "p50", "p95")
    )
    yield "5 % to 95 %", f"{low} to {high}, median {median}"


def _noise(jitter: Mapping[str, Any]) -> Iterator[str]:
    for name, amount in jitter.items():
        yield f"{name} {100 * amount['value']:g} % ({amount['evidence']})"
