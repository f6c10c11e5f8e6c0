"""A job over weeks: work, checkpoints, failures and restarts, event by event (SimPy), driven by the time of a step.

Failures come as a Poisson process whose rate is the sum over components of `rate per GPU-hour x GPUs`. Each costs the
work since the last durable checkpoint, the time until it is noticed, a new host (spares first, then repair), making
communicators anew, and loading the checkpoint. Another failure while restarting begins the restart again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import simpy

HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Job:
    """A job and what befalls it; s, and failures per s of the whole job by component.

    Attributes
    ----------
    step, days : float
        Seconds of a step; length of the run in days.
    interval, stall : float
        Seconds of work between saves, and for how long training stands still in one.
    lag : float
        Seconds from the end of the stall until the save is durable.
    rates : mapping
        Failures per second by component.
    replaces : frozenset of str
        Components whose failure takes the host out.
    detect, restart, load : float
        Seconds until a failure is noticed, until processes and communicators are there again, and to load.
    spares, repair : int, float
        Hosts kept ready, and seconds until a broken one is back; without a spare the job waits for it.
    swap : float
        Seconds to bring a spare host in.
    """

    step: float
    days: float
    interval: float
    stall: float
    lag: float
    rates: Mapping[str, float]
    replaces: frozenset[str]
    detect: float
    restart: float
    load: float
    spares: int
    repair: float
    swap: float


@dataclass
class Outcome:
    """Seconds of a run by what they went to, and failures by component; `useful` is work that was not lost."""

    useful: float = 0.0
    lost: float = 0.0
    saving: float = 0.0
    detecting: float = 0.0
    waiting: float = 0.0
    restarting: float = 0.0
    failures: dict[str, int] | None = None

    @property
    def total(self) -> float:
        return self.useful + self.lost + self.saving + self.detecting + self.waiting + self.restarting

    @property
    def goodput(self) -> float:
        """Effective training time: share of the run that became progress."""
        return self.useful / self.total if self.total else math.nan


def run(job: Job, seed: int) -> Outcome:
    """One run; the same seed gives the same failures, whatever the interval."""
    env, out = simpy.Environment(), Outcome(failures=dict.fromkeys(job.rates, 0))
    env.process(_life(env, job, random.Random(seed), out))
    env.run(until=job.days * DAY + 1e-3)  # SimPy stops before what happens at the end itself
    out.waiting += max(0.0, job.days * DAY - out.total)  # still waiting for a host when the run ended
    return out


def _life(env: simpy.Environment, job: Job, draw: random.Random, out: Outcome) -> Generator[Any, Any, None]:
    end, rate = job.days * DAY, math.fsum(job.rates.values())
    names, weights = list(job.rates), list(job.rates.values())
    spares = simpy.Container(env, capacity=max(1, job.spares + len(names) * 1000), init=job.spares)
    failure = env.now + draw.expovariate(rate) if rate > 0 else math.inf
    while env.now < end:
        since, until = env.now, min(failure, end)
        yield env.timeout(until - env.now)
        if failure > end:
            _count_work(job, out, until - since, lost=False)
            return
        _count_work(job, out, until - since, lost=True)
        down = True
        while down:
            name = draw.choices(names, weights)[0]
            counts = out.failures if out.failures is not None else {}
            counts[name] += 1
            failure = env.now + draw.expovariate(rate)
            yield from _spend(env, out, "detecting", job.detect, end)
            if name in job.replaces:
                begun = env.now
                env.process(_repair(env, spares, job.repair))
                yield spares.get(1)
                out.waiting += env.now - begun
                yield from _spend(env, out, "waiting", job.swap, end)
            need = job.restart + job.load
            down = failure < env.now + need
            yield from _spend(env, out, "restarting", max(0.0, failure - env.now) if down else need, end)


def _spend(env: simpy.Environment, out: Outcome, what: str, time: float, end: float) -> Generator[Any, Any, None]:
    setattr(out, what, getattr(out, what) + max(0.0, min(time, end - env.now)))
    yield env.timeout(time)


def _repair(env: simpy.Environment, spares: simpy.Container, repair: float) -> Generator[Any, Any, None]:
    yield env.timeout(repair)
    yield spares.put(1)


def _count_work(job: Job, out: Outcome, time: float, lost: bool) -> None:
    """`time` seconds of work and saves since the last restart; with `lost` what no durable save holds is lost."""
    cycle = job.interval + job.stall
    whole, rest = divmod(time, cycle)
    out.saving += whole * job.stall + max(0.0, rest - job.interval)
    work = whole * job.interval + min(rest, job.interval)
    durable = max(0.0, math.floor((time - job.lag) / cycle)) if time > job.lag else 0.0
    kept = durable * job.interval if lost else work
    out.useful += kept
    out.lost += work - kept


def young_daly(stall: float, mtbf: float) -> float:
    """Seconds of work between saves that waste least: sqrt(2 x cost of a save x mean time between failures).

    Young 1974; Daly, A higher order estimate of the optimum checkpoint interval, 2006.
    """
    return math.sqrt(2 * stall * mtbf)
