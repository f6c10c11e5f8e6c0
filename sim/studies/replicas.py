"""Replicas of a step with noise: the distribution of its time, and the mean with its confidence interval.

A replica is the whole run again, first steps and all, with its own draws (`sim.planning.noise`); its last step counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import progress
from sim.engine.engine import execute
from sim.planning.noise import jitter_of, noise_of
from sim.reliability.statistics import CONFIDENCE, interval_of
from sim.units import format_duration

if TYPE_CHECKING:
    from sim.predict import Simulation

PERCENTILES = (5, 25, 50, 75, 95, 99)


def replicas_of(
    simulation: Simulation, step: float, replicas: int, seed: int
) -> dict[str, Any]:
    """Step times of the replicas (s, in their order) and what they amount to; `step` is without noise."""
    times = step_times(simulation, step, replicas, seed)
    return summary(times, step, seed) | {
        "jitter": jitter_of(
            simulation.scenario.faults, simulation.scenario.where
        ).to_dict(),
        "step_times": times,
    }


def step_times(
    simulation: Simulation, step: float, replicas: int, seed: int
) -> list[float]:
    """The step time of every replica, s."""
    from sim.analysis import report
    from sim.predict import machine

    s, graph, steps = (
        simulation,
        simulation.lowered.graph,
        simulation.run.end[0].shape[0],
    )
    jitter = jitter_of(s.scenario.faults, s.scenario.where)
    if jitter.silent:
        return [step] * replicas  # without noise every run is the plain one
    quiet = machine(s.scenario, graph, s.fabric, s.gpu, s.gpus or None, s.chains)
    found = []
    for at in progress.track(range(replicas), "replicas"):
        noise = noise_of(jitter, graph, quiet.duration, steps, (seed, at))
        run = execute(graph, replace(quiet, noise=noise), steps)
        found.append(report.step_time(replace(s, run=run)))
    return found


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
    p, n = table["percentiles"], table["replicas"]
    known = n > 1
    pm = f" ± {format_duration(table['half_width'])} (95 % confidence)" if known else ""
    more = f"{100 * table['slower']:+.2f} % on the step without noise"
    rows = [("mean step", f"{format_duration(table['mean'])}{pm}, {more}")]
    if known:
        share = 100 * table["std"] / table["mean"]
        middle = f"{format_duration(p['p5'])} to {format_duration(p['p95'])}, median {format_duration(p['p50'])}"
        rows.append(
            ("standard deviation", f"{format_duration(table['std'])}, {share:.2f} %")
        )
        rows.append(("5 % to 95 %", middle))
    noise = [
        f"{name} {100 * one['value']:g} % ({one['evidence']})"
        for name, one in table["jitter"].items()
    ]
    return [
        *rows,
        ("noise", ", ".join(noise)),
        ("replicas", f"{n}, seed {table['seed']}"),
    ]
