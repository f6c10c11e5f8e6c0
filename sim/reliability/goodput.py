"""Effective training time of a job over weeks: replicas of `sim.engine.job`, their mean and its confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sim import progress
from sim.engine.job import DAY, HOUR, Job, Outcome, run, young_daly
from sim.reliability.failures import evidence, job_of, rates_of
from sim.reliability.statistics import CONFIDENCE, interval_of
from sim.units import format_duration


@dataclass(frozen=True)
class Goodput:
    """Replicas of a job."""

    job: Job
    gpus: int
    outcomes: tuple[Outcome, ...]

    @property
    def mtbf(self) -> float:
        """Seconds between failures of the job; infinite without any."""
        rate = math.fsum(self.job.rates.values())
        return 1 / rate if rate else math.inf

    def to_json(self) -> dict[str, Any]:
        """Seconds, shares; means over replicas with the half width of their 95 % confidence interval."""
        values = [o.goodput for o in self.outcomes]
        mean, half = interval_of(values)
        parts = (
            "useful",
            "lost",
            "saving",
            "detecting",
            "waiting",
            "restarting",
            "degraded",
        )
        counts = {
            n: statistics.fmean((o.failures or {})[n] for o in self.outcomes)
            for n in self.job.rates
        }
        best = (
            young_daly(self.job.stall, self.mtbf)
            if self.job.rates and self.job.stall > 0
            else None
        )
        return {
            "goodput": mean,
            "confidence": CONFIDENCE,
            "half_width": half,
            "low": mean - half,
            "high": mean + half,
            "worst": min(values),
            "best": max(values),
            "replicas": len(values),
            "gpus": self.gpus,
            "days": self.job.days,
            "mtbf": self.mtbf if math.isfinite(self.mtbf) else None,
            "interruptions": math.fsum(counts.values()),
            "interruptions_by_component": counts,
            "shares": {
                p: statistics.fmean(getattr(o, p) / o.total for o in self.outcomes)
                for p in parts
            },
            "interval": self.job.interval,
            "young_daly": best,
            "save_stall": self.job.stall,
            "restart": self.job.restart,
            "load_time": self.job.load,
            "step_time": self.job.step,
            "effective_step_time": self.job.step / mean if mean > 0 else None,
            "evidence": evidence(),
            "takes": {name: hosts for name, hosts in self.job.takes.items() if hosts},
            "progress_with_hosts_missing": list(self.job.speeds),
        }


def simulate(job: Job, gpus: int, replicas: int, seed: int) -> Goodput:
    """Replicas of a job; replica i has seed `seed + i`."""
    return Goodput(
        job,
        gpus,
        tuple(
            run(job, seed * 1_000_003 + at)
            for at in progress.track(range(replicas), "replicas")
        ),
    )


@dataclass(frozen=True)
class Tried:
    """An interval between saves (s) with its goodput, and how far that is behind the best's in the same replicas.

    `half_width`, `behind_half`: of the 95 % confidence intervals. The failures of the replicas are the same for every
    interval, so the difference is known better than either.
    """

    interval: float
    goodput: float
    half_width: float
    behind: float
    behind_half: float

    @property
    def as_good(self) -> bool:
        """Not worse than the best, as far as the replicas tell."""
        return not self.behind - self.behind_half > 0


@dataclass(frozen=True)
class Optimum:
    """Intervals that were tried around Young and Daly's."""

    interval: float
    tried: tuple[Tried, ...]
    theory: Tried

    def to_json(self) -> dict[str, Any]:
        """Seconds and shares; `optimal_low` to `optimal_high` are the intervals that are not worse than the best."""
        good = [one.interval for one in self.tried if one.as_good]
        return {
            "optimal_interval": self.interval,
            "optimal_low": min(good),
            "optimal_high": max(good),
            "young_daly_behind": self.theory.behind,
            "young_daly_behind_half_width": self.theory.behind_half,
            "tried": [
                {
                    "interval": t.interval,
                    "goodput": t.goodput,
                    "half_width": t.half_width,
                    "behind": t.behind,
                    "behind_half_width": t.behind_half,
                }
                for t in self.tried
            ],
        }


def optimal(job: Job, gpus: int, replicas: int, seed: int) -> Optimum:
    """The interval of the highest goodput among multiples of Young and Daly's."""
    total = math.fsum(job.rates.values())
    centre = (
        young_daly(job.stall, 1 / total) if total and job.stall > 0 else job.interval
    )
    least = max(job.step, job.stall, job.lag)
    at = sorted({max(least, centre * 2.0 ** (k / 2)) for k in range(-6, 7)})
    runs = [
        simulate(replace(job, interval=one), gpus, replicas, seed).outcomes
        for one in progress.track(at, "intervals")
    ]
    values = [[o.goodput for o in outcomes] for outcomes in runs]
    best = max(range(len(at)), key=lambda i: statistics.fmean(values[i]))
    tried = []
    for interval, found in zip(at, values, strict=True):
        behind = interval_of([b - v for b, v in zip(values[best], found, strict=True)])
        tried.append(Tried(interval, *interval_of(found), *behind))
    theory = min(tried, key=lambda one: abs(one.interval - max(least, centre)))
    return Optimum(at[best], tuple(tried), theory)


def render(made: Mapping[str, Any]) -> str:
    """The page for people."""
    spread = f"(worst {100 * made['worst']:.2f} %, best {100 * made['best']:.2f} %)"
    every, stall = (
        format_duration(made["interval"]),
        format_duration(made["save_stall"]),
    )
    pm = "" if math.isnan(made["half_width"]) else f" ± {100 * made['half_width']:.2f}"
    mtbf = "never" if made["mtbf"] is None else f"{made['mtbf'] / HOUR:.2f} h"
    lines = [
        f"{made['gpus']:,} GPUs for {made['days']:g} days, {made['replicas']} replicas".replace(
            ",", " "
        ),
        "",
        f"  effective training time   {100 * made['goodput']:.2f}{pm} %   {spread}",
        f"  interruptions             {made['interruptions']:.1f}, one every {mtbf}",
        f"  a save every              {every} (stall {stall})",
    ]
    if made["young_daly"] is not None:
        lines.append(
            f"  Young and Daly            {format_duration(made['young_daly'])}"
        )
    if "optimal_interval" in made:
        low, high = (format_duration(made[f"optimal_{end}"]) for end in ("low", "high"))
        lines.append(
            f"  best interval simulated   {format_duration(made['optimal_interval'])} ({low} to {high})"
        )
    lines += ["", "  where the time goes"]
    lines += [
        f"    {name:12} {100 * share:6.2f} %" for name, share in made["shares"].items()
    ]
    if len(speeds := made["progress_with_hosts_missing"]) > 1:
        lines += [
            "",
            f"  goes on with up to {len(speeds) - 1} hosts missing, at {100 * speeds[-1]:.1f} % of its speed",
        ]
    known = ", ".join(f"{name} {grade}" for name, grade in made["evidence"].items())
    lines += ["", f"  defaults rest on: {known}", "", "  interruptions by component"]
    lines += [
        f"    {name:12} {count:6.1f}"
        for name, count in made["interruptions_by_component"].items()
    ]
    return "\n".join(lines)


__all__ = [
    "DAY",
    "Goodput",
    "interval_of",
    "job_of",
    "optimal",
    "rates_of",
    "render",
    "simulate",
    "young_daly",
]
