"""Effective training time of a job over weeks: replicas of `sim.faults`, their mean and its confidence interval."""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sim.collectives import creation
from sim.errors import InputError, Mistake, unknown
from sim.faults import DAY, HOUR, Job, Outcome, run, young_daly
from sim.statistics import CONFIDENCE, interval_of
from sim.units import format_duration, parse_duration

WHERE = "command line"


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
        parts = ("useful", "lost", "saving", "detecting", "waiting", "restarting")
        counts = {n: statistics.fmean((o.failures or {})[n] for o in self.outcomes) for n in self.job.rates}
        best = young_daly(self.job.stall, self.mtbf) if self.job.rates and self.job.stall > 0 else None
        return {
            "goodput": mean, "confidence": CONFIDENCE, "half_width": half, "low": mean - half, "high": mean + half,
            "worst": min(values), "best": max(values), "replicas": len(values), "gpus": self.gpus,
            "days": self.job.days, "mtbf": self.mtbf if math.isfinite(self.mtbf) else None,
            "interruptions": math.fsum(counts.values()), "interruptions_by_component": counts,
            "shares": {p: statistics.fmean(getattr(o, p) / o.total for o in self.outcomes) for p in parts},
            "interval": self.job.interval, "young_daly": best, "save_stall": self.job.stall,
            "restart": self.job.restart, "load_time": self.job.load, "step_time": self.job.step,
            "effective_step_time": self.job.step / mean if mean > 0 else None,
        }  # fmt: skip


def table() -> dict[str, Any]:
    """The defaults, as their file has them."""
    return tomllib.loads((Path(__file__).parent / "costs" / "reliability.toml").read_text(encoding="utf-8"))


def rates_of(gpus: int, given: Sequence[str] = (), scale: float = 1.0) -> dict[str, float]:
    """Failures per second of a job by component: the defaults times `scale`, or NAME=failures per million GPU-hours.

    Raises
    ------
    InputError
        With every rate that is none.
    """
    told, mistakes = table(), list[Mistake]()
    rates = {name: count / told["gpu_hours"] * 1e6 * scale for name, count in told["counts"].items()}
    if not (math.isfinite(scale) and scale >= 0):
        mistakes.append(Mistake(WHERE, "--rate-scale", f"{scale:g}", "a number that is not negative"))
    for item in given:
        name, _, value = item.partition("=")
        expected = "NAME=failures per million GPU-hours, such as gpu=9"
        if name not in rates:
            mistakes.append(unknown(WHERE, "--rate", name, rates))
            continue
        try:
            rates[name] = float(value)
        except ValueError:
            mistakes.append(Mistake(WHERE, "--rate", f'"{item}"', expected))
            continue
        if not (math.isfinite(rates[name]) and rates[name] >= 0):
            mistakes.append(Mistake(WHERE, "--rate", f'"{item}"', f"{expected}, not negative"))
    if mistakes:
        raise InputError(mistakes)
    return {name: rate / 1e6 / HOUR * gpus for name, rate in rates.items()}


def job_of(asked: Mapping[str, Any]) -> Job:
    """A job from options: texts with units, or None for the default.

    Raises
    ------
    InputError
        With everything that is wrong.
    """
    told, mistakes, s = table(), list[Mistake](), dict[str, float]()
    defaults = {name: one["value"] for name, one in told["times"].items()}
    for name in ("step_time", "save", "lag", "load", "interval", "detect", "swap", "start", "repair"):
        text = asked.get(name) if asked.get(name) is not None else defaults.get(name)
        if isinstance(text, float) or text is None:
            s[name] = text if text is not None else math.nan
            continue
        try:
            s[name] = parse_duration(text, WHERE, f"--{name.replace('_', '-')}")
        except InputError as error:
            mistakes += error.mistakes
            s[name] = 1.0
    rates: dict[str, float] = {}
    try:
        rates = rates_of(asked["gpus"], asked.get("rates", ()), asked.get("rate_scale", 1.0))
    except InputError as error:
        mistakes += error.mistakes
    if not (math.isfinite(asked["days"]) and asked["days"] > 0):
        mistakes.append(Mistake(WHERE, "--days", f"{asked['days']:g}", "more than 0"))
    if s["step_time"] <= 0:
        mistakes.append(Mistake(WHERE, "--step-time", format_duration(s["step_time"]), "more than 0"))
    total = math.fsum(rates.values())
    if math.isnan(s["interval"]):
        s["interval"] = max(s["step_time"], young_daly(s["save"], 1 / total) if total and s["save"] > 0 else HOUR)
    if s["interval"] < max(s["save"], s["lag"]) or s["interval"] <= 0:
        found, least = format_duration(s["interval"]), format_duration(max(s["save"], s["lag"]))
        mistakes.append(Mistake(WHERE, "--interval", found, f"longer than a save ({least})", "save less often"))
    elif s["interval"] < s["step_time"]:
        mistakes.append(Mistake(WHERE, "--interval", format_duration(s["interval"]), "at least a step"))
    if mistakes:
        raise InputError(mistakes)
    made = s["start"] + creation.seconds(asked["gpus"])
    replaces = frozenset(told["replaces"]["components"])
    return Job(s["step_time"], asked["days"], s["interval"], s["save"], s["lag"], rates, replaces, s["detect"], made,
               s["load"], asked["spares"], s["repair"], s["swap"])  # fmt: skip


def simulate(job: Job, gpus: int, replicas: int, seed: int) -> Goodput:
    """Replicas of a job; replica i has seed `seed + i`."""
    return Goodput(job, gpus, tuple(run(job, seed * 1_000_003 + at) for at in range(replicas)))


def optimal(job: Job, gpus: int, replicas: int, seed: int) -> tuple[float, list[tuple[float, float]]]:
    """The interval of the highest goodput among multiples of Young and Daly's, and all of them (interval, goodput)."""
    total = math.fsum(job.rates.values())
    centre = young_daly(job.stall, 1 / total) if total and job.stall > 0 else job.interval
    least = max(job.step, job.stall, job.lag)
    tried = sorted({max(least, centre * 2.0 ** (k / 2)) for k in range(-6, 7)})
    runs = [(at, simulate(replace(job, interval=at), gpus, replicas, seed).outcomes) for at in tried]
    found = [(at, statistics.fmean(o.goodput for o in outcomes)) for at, outcomes in runs]
    return max(found, key=lambda pair: pair[1])[0], found


def render(made: Mapping[str, Any]) -> str:
    """The page for people."""
    spread = f"(worst {100 * made['worst']:.2f} %, best {100 * made['best']:.2f} %)"
    every, stall = format_duration(made["interval"]), format_duration(made["save_stall"])
    pm = "" if math.isnan(made["half_width"]) else f" ± {100 * made['half_width']:.2f}"
    mtbf = "never" if made["mtbf"] is None else f"{made['mtbf'] / HOUR:.2f} h"
    lines = [
        f"{made['gpus']:,} GPUs for {made['days']:g} days, {made['replicas']} replicas".replace(",", " "),
        "",
        f"  effective training time   {100 * made['goodput']:.2f}{pm} %   {spread}",
        f"  interruptions             {made['interruptions']:.1f}, one every {mtbf}",
        f"  a save every              {every} (stall {stall})",
    ]
    if made["young_daly"] is not None:
        lines.append(f"  Young and Daly            {format_duration(made['young_daly'])}")
    if "optimal_interval" in made:
        lines.append(f"  best interval simulated   {format_duration(made['optimal_interval'])}")
    lines += ["", "  where the time goes"]
    lines += [f"    {name:12} {100 * share:6.2f} %" for name, share in made["shares"].items()]
    lines += ["", "  interruptions by component"]
    lines += [f"    {name:12} {count:6.1f}" for name, count in made["interruptions_by_component"].items()]
    return "\n".join(lines)


__all__ = ["DAY", "Goodput", "interval_of", "job_of", "optimal", "rates_of", "render", "simulate", "young_daly"]
