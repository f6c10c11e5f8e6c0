"""Effective training time of a job over weeks: replicas of `sim.engine.job`, their mean and its confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
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


def render(table: Mapping[str, Any]) -> str:
    """The page for people."""
    heading = f"{table['gpus']:,} GPUs for {table['days']:g} days, {table['replicas']} replicas"
    grades = [f"{name} {grade}" for name, grade in table["evidence"].items()]
    shares = table["shares"].items()
    counts = table["interruptions_by_component"].items()
    lines = [
        heading.replace(",", " "),
        "",
        *_totals(table),
        *_intervals(table),
        "",
        "  where the time goes",
        *(f"    {name:12} {100 * share:6.2f} %" for name, share in shares),
        *_degraded(table["progress_with_hosts_missing"]),
        "",
        f"  defaults rest on: {', '.join(grades)}",
        "",
        "  interruptions by component",
        *(f"    {name:12} {count:6.1f}" for name, count in counts),
    ]
    return "\n".join(lines)


def _totals(table: Mapping[str, Any]) -> Iterator[str]:
    mean, half, worst, best = (
        100 * table[name] for name in ("goodput", "half_width", "worst", "best")
    )
    plus_minus = "" if math.isnan(half) else f" ± {half:.2f}"
    spread = f"(worst {worst:.2f} %, best {best:.2f} %)"
    yield f"  effective training time   {mean:.2f}{plus_minus} %   {spread}"
    mtbf = "never" if table["mtbf"] is None else f"{table['mtbf'] / HOUR:.2f} h"
    yield f"  interruptions             {table['interruptions']:.1f}, one every {mtbf}"


def _intervals(table: Mapping[str, Any]) -> Iterator[str]:
    every = format_duration(table["interval"])
    stall = format_duration(table["save_stall"])
    yield f"  a save every              {every} (stall {stall})"
    if table["young_daly"] is not None:
        theory = format_duration(table["young_daly"])
        yield f"  Young and Daly            {theory}"
    if "optimal_interval" in table:
        best, low, high = (
            format_duration(table[f"optimal_{name}"])
            for name in ("interval", "low", "high")
        )
        yield f"  best interval simulated   {best} ({low} to {high})"


def _degraded(speeds: Sequence[float]) -> list[str]:
    """What is left of the speed without the most hosts that may be missing."""
    if len(speeds) < 2:
        return []
    hosts, speed = len(speeds) - 1, 100 * speeds[-1]
    line = f"  goes on with up to {hosts} hosts missing, at {speed:.1f} % of its speed"
    return ["", line]


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
