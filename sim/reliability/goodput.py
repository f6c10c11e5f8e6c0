"""Effective training time of a job over weeks: replicas of `prestep.sim.reliability.job`, their mean and its confidence
interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prestep.sim import progress
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.reliability.failures import evidence, job_of, rates_of
from prestep.sim.reliability.job import DAY, Job, Outcome, run, young_daly
from prestep.sim.reliability.slow_hosts import HOUR
from prestep.sim.studies.statistics import CONFIDENCE, interval_of
from prestep.sim.units import format_duration

# What a job's time goes into, as a sentence says it.
_PARTS = {
    "useful": "training",
    "lost": "work since the last save that is lost",
    "saving": "saving",
    "detecting": "noticing that something failed",
    "waiting": "waiting for hosts",
    "restarting": "starting again",
    "degraded": "going on with hosts missing",
    "testing": "testing hosts",
    "slow": "going on with slow hosts",
}


SCHEMA = schemas_beside(__file__)["schema"]


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
        return {
            **self._goodput(),
            "gpus": self.gpus,
            "days": self.job.days,
            "mtbf": self.mtbf if math.isfinite(self.mtbf) else None,
            **self._interruptions(),
            "shares": {part: self._share(part) for part in _PARTS},
            **self._times(),
            "evidence": evidence(),
            "takes": {name: hosts for name, hosts in self.job.takes.items() if hosts},
            "progress_with_hosts_missing": list(self.job.speeds),
            "slow_hosts": self._slow_hosts(),
        }

    @property
    def values(self) -> list[float]:
        """Effective training time of each replica."""
        return [outcome.goodput for outcome in self.outcomes]

    def _goodput(self) -> dict[str, Any]:
        """Effective training time over the replicas."""
        values = self.values
        mean, half = interval_of(values)
        return {
            "goodput": mean,
            "confidence": CONFIDENCE,
            "half_width": half,
            # A share of time: the symmetric interval of few replicas reaches beyond it.
            "low": max(mean - half, 0.0),
            "high": min(mean + half, 1.0),
            "worst": min(values),
            "best": max(values),
            "replicas": len(values),
        }

    def _interruptions(self) -> dict[str, Any]:
        """Mean number of failures, in all and by component."""
        failures = [outcome.failures or {} for outcome in self.outcomes]
        counts = {
            name: statistics.fmean(one[name] for one in failures)
            for name in self.job.rates
        }
        return {
            "interruptions": math.fsum(counts.values()),
            "interruptions_by_component": counts,
        }

    def _slow_hosts(self) -> dict[str, float]:
        """Mean number of slow hosts that there were at the start, that tests found, and that somebody noticed."""
        return {
            name: statistics.fmean(
                getattr(one, f"slow_{name}") for one in self.outcomes
            )
            for name in ("at_start", "found", "noticed")
        }

    def _share(self, part: str) -> float:
        """Mean share of the time that goes into a part."""
        return statistics.fmean(getattr(one, part) / one.total for one in self.outcomes)

    def _times(self) -> dict[str, Any]:
        """What the job was told, and the interval of theory."""
        job = self.job
        mean, _ = interval_of(self.values)
        fails = job.rates and job.stall > 0
        return {
            "interval": job.interval,
            "young_daly": young_daly(job.stall, self.mtbf) if fails else None,
            "save_stall": job.stall,
            "restart": job.restart,
            "load_time": job.load,
            "step_time": job.step,
            "effective_step_time": job.step / mean if mean > 0 else None,
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
    least, centre = max(job.step, job.stall, job.lag), _theory(job)
    intervals = _around(centre, least)
    values = [
        simulate(replace(job, interval=interval), gpus, replicas, seed).values
        for interval in progress.track(intervals, "intervals")
    ]
    means = [statistics.fmean(goodputs) for goodputs in values]
    best = means.index(max(means))
    pairs = zip(intervals, values, strict=True)
    tried = tuple(_tried(interval, own, values[best]) for interval, own in pairs)
    theory = min(tried, key=lambda one: abs(one.interval - max(least, centre)))
    return Optimum(intervals[best], tried, theory)


def _theory(job: Job) -> float:
    """Young and Daly's interval; the job's own where nothing fails or a save costs nothing."""
    total = math.fsum(job.rates.values())
    fails = total and job.stall > 0
    return young_daly(job.stall, 1 / total) if fails else job.interval


def _around(centre: float, least: float) -> list[float]:
    """Multiples of an interval from an eighth to eight times, by the square root of two."""
    return sorted({max(least, centre * 2.0 ** (k / 2)) for k in range(-6, 7)})


def _tried(interval: float, values: list[float], best: list[float]) -> Tried:
    """An interval beside the best one, replica by replica."""
    behind = [b - v for b, v in zip(best, values, strict=True)]
    return Tried(interval, *interval_of(values), *interval_of(behind))


def render(table: Mapping[str, Any]) -> str:
    """The page for people."""
    heading = f"{table['gpus']:,} GPUs for {table['days']:g} days, {table['replicas']} replicas"
    grades = [f"{name} {grade}" for name, grade in table["evidence"].items()]
    shares = table["shares"].items()
    counts = table["interruptions_by_component"].items()
    lines = [
        _answer(table),
        heading.replace(",", " "),
        "",
        *_totals(table),
        *_intervals(table),
        "",
        "  where the time goes",
        *(f"    {name:12} {100 * share:6.2f} %" for name, share in shares),
        *_degraded(table["progress_with_hosts_missing"]),
        *_slow(table["slow_hosts"]),
        "",
        f"  defaults rest on: {', '.join(grades)}",
        "",
        "  interruptions by component",
        *(f"    {name:12} {count:6.1f}" for name, count in counts),
    ]
    return "\n".join(lines)


def _answer(table: Mapping[str, Any]) -> str:
    """What share of the time trains, and what takes most of the rest."""
    trains = f"{100 * table['goodput']:.1f} % of the time trains"
    rest = {name: share for name, share in table["shares"].items() if name != "useful"}
    most = max(rest, key=rest.__getitem__)
    if rest[most] <= 0:
        return f"{trains}."
    return f"{trains}. Most of the rest, {100 * rest[most]:.2f} %, is {_PARTS[most]}."


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


def _slow(hosts: Mapping[str, float]) -> list[str]:
    """Slow hosts, where there are any."""
    if not any(hosts.values()):
        return []
    start, found, noticed = (
        f"{hosts[name]:.1f}" for name in ("at_start", "found", "noticed")
    )
    line = f"  slow hosts: {start} at the start; tests found {found}, somebody noticed {noticed}"
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
