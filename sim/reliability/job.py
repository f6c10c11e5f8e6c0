"""A job over weeks: work, checkpoints, failures and restarts, event by event (SimPy), driven by the time of a step.

Failures come as a Poisson process whose rate is the sum over components of `rate per GPU-hour x GPUs`. Each costs the
work since the last durable checkpoint, the time until it is noticed, new hosts (spares first, then repair), making
communicators anew, and loading the checkpoint. Another failure while restarting begins the restart again.

A failure takes as many hosts as its component has (`takes`): none, one, or those of a rack. Without spares the job
waits, or goes on with fewer hosts where `speeds` says how fast. Hosts that are back join at the next restart; at once
where what they add until the next failure is more than a restart costs. A host may also be slow (`slow_hosts`): the job
goes on at its speed until tests before a start find it, or somebody notices, who saves, takes it out and starts again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import simpy

from prestep.sim.reliability.slow_hosts import HOUR, NONE, Slow, SlowHosts

DAY = 24 * HOUR


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
    takes : mapping
        Hosts that a failure of a component takes out; none where it is not in it.
    detect, restart, load : float
        Seconds until a failure is noticed, until processes and communicators are there again, and to load.
    spares, repair : int, float
        Hosts kept ready, and seconds until a broken one is back; without a spare the job waits for it.
    swap : float
        Seconds to bring spare hosts in.
    speeds : tuple of float
        Progress with so many hosts missing, relative to all of them; with more missing the job waits.
    slow : Slow
        Hosts that nobody notices.
    """

    step: float
    days: float
    interval: float
    stall: float
    lag: float
    rates: Mapping[str, float]
    takes: Mapping[str, int]
    detect: float
    restart: float
    load: float
    spares: int
    repair: float
    swap: float
    speeds: tuple[float, ...] = (1.0,)
    slow: Slow = NONE


@dataclass
class Outcome:
    """Seconds of a run by what they went to, and failures by component; `useful` is work that was not lost.

    `degraded` is what fewer hosts did not do: of an hour at 0.9 of the speed, six minutes; `slow` what was not done
    because of slow hosts, of which there were `slow_at_start`; tests found and people noticed so many.
    """

    useful: float = 0.0
    lost: float = 0.0
    saving: float = 0.0
    detecting: float = 0.0
    waiting: float = 0.0
    restarting: float = 0.0
    degraded: float = 0.0
    testing: float = 0.0
    slow: float = 0.0
    slow_at_start: int = 0
    slow_found: int = 0
    slow_noticed: int = 0
    failures: dict[str, int] | None = None

    @property
    def total(self) -> float:
        spent = (
            self.lost + self.saving + self.detecting + self.waiting + self.restarting
        )
        return self.useful + spent + self.degraded + self.testing + self.slow

    @property
    def goodput(self) -> float:
        """Effective training time: share of the run that became progress."""
        return self.useful / self.total if self.total else math.nan


def run(job: Job, seed: int) -> Outcome:
    """One run; the same seed gives the same failures, whatever the interval."""
    env, out = simpy.Environment(), Outcome(failures=dict.fromkeys(job.rates, 0))
    slow = SlowHosts(job.slow, seed)
    life = _Life(env, job, random.Random(seed), out, slow)
    env.process(life.live())
    env.run(until=life.end + 1e-3)  # SimPy stops before what happens at the end itself
    out.waiting += max(
        0.0, life.end - out.total
    )  # still waiting for a host when the run ended
    out.slow_at_start = slow.at_start
    out.slow_found, out.slow_noticed = slow.found, slow.noticed
    return out


class _Life:
    """State of one run: when the next failure is, spare hosts, and hosts that the job lacks."""

    def __init__(
        self,
        env: simpy.Environment,
        job: Job,
        draw: random.Random,
        out: Outcome,
        slow: SlowHosts,
    ) -> None:
        self.env, self.job, self.draw, self.out = env, job, draw, out
        self.end, self.rate = job.days * DAY, math.fsum(job.rates.values())
        self.names, self.weights = list(job.rates), list(job.rates.values())
        self.spares, self.missing, self.slow = job.spares, 0, slow
        self.back = env.event()
        self.failure = self._next()

    def _next(self) -> float:
        return (
            float(self.env.now) + self.draw.expovariate(self.rate)
            if self.rate > 0
            else math.inf
        )

    def live(self) -> Generator[Any, Any, None]:
        yield from self._test()
        while self.env.now < self.end:
            since, stops = self.env.now, min(self.failure, self.end)
            until = max(since, min(stops, self.slow.notice))
            speed = self.job.speeds[self.missing]
            joined = yield from self._work(until)
            lost = not joined and self.failure <= min(until, self.end)
            self._count(since, self.env.now if joined else until, speed, lost)
            if joined:
                yield from self._planned(0)
            elif lost:
                yield from self._recover()
            elif until < self.end:
                self.slow.take_out()
                yield from self._planned(1)
            else:
                return

    def _count(self, since: float, until: float, speed: float, lost: bool) -> None:
        """Work since the last restart, of which the end may have been slow."""
        self.slow.pass_to(until)
        slow = until - min(until, max(since, self.slow.first))
        _count_work(self.job, self.out, until - since, speed, lost, slow)

    def _work(self, until: float) -> Generator[Any, Any, bool]:
        """Until then (False), or until hosts are back that are worth a restart (True)."""
        over = self.env.timeout(until - self.env.now)
        while self._worth():
            if self.spares:
                return True
            yield over | self.back
            if over.processed:
                return False
        yield over
        return False

    def _worth(self) -> bool:
        """Whether hosts that come back earn more until the next failure than a restart for them costs."""
        job = self.job
        cost = job.stall + job.lag + job.swap + job.restart + job.load
        return self.missing > 0 and (1.0 - job.speeds[self.missing]) / self.rate > cost

    def _planned(self, taken: int) -> Generator[Any, Any, None]:
        """A planned restart, without so many hosts: saved first, so that no work is lost."""
        yield from self._spend("saving", self.job.stall + self.job.lag)
        yield from self._hosts(taken)
        yield from self._restart()

    def _test(self) -> Generator[Any, Any, None]:
        """Tests before a start: slow hosts that they find are taken out."""
        if self.job.slow.test > 0:
            self.slow.pass_to(float(self.env.now))
            yield from self._spend("testing", self.job.slow.test)
            if found := self.slow.test():
                yield from self._hosts(found)

    def _recover(self) -> Generator[Any, Any, None]:
        """From a failure to work again."""
        down = True
        while down:
            name = self.draw.choices(self.names, self.weights)[0]
            counts = self.out.failures if self.out.failures is not None else {}
            counts[name] += 1
            self.failure = self._next()
            yield from self._spend("detecting", self.job.detect)
            yield from self._hosts(self.job.takes.get(name, 0))
            down = self.failure < self.env.now + self.job.restart + self.job.load
            yield from self._restart(self.failure if down else math.inf)

    def _restart(self, until: float = math.inf) -> Generator[Any, Any, None]:
        yield from self._test()
        yield from self._spend(
            "restarting",
            max(0.0, min(self.job.restart + self.job.load, until - self.env.now)),
        )

    def _hosts(self, taken: int) -> Generator[Any, Any, None]:
        """Gives up the hosts that a failure took, and brings spares in for all that are missing."""
        if taken:
            self.env.process(self._repair(taken))
        self.missing += taken
        begun = self.env.now
        while self.missing - self.spares >= len(self.job.speeds):
            yield self.back
        self.out.waiting += self.env.now - begun
        if brought := min(self.spares, self.missing):
            self.spares, self.missing = self.spares - brought, self.missing - brought
            yield from self._spend("waiting", self.job.swap)

    def _repair(self, hosts: int) -> Generator[Any, Any, None]:
        yield self.env.timeout(self.job.repair)
        self.spares += hosts
        self.back.succeed()
        self.back = self.env.event()

    def _spend(self, what: str, time: float) -> Generator[Any, Any, None]:
        setattr(
            self.out,
            what,
            getattr(self.out, what) + max(0.0, min(time, self.end - self.env.now)),
        )
        yield self.env.timeout(time)


def _count_work(
    job: Job, out: Outcome, time: float, speed: float, lost: bool, slow: float = 0.0
) -> None:
    """`time` seconds of work and saves since the last restart, the last `slow` of them with a slow host.

    With `lost` what no durable save holds is lost.
    """
    cycle = job.interval + job.stall
    whole, rest = divmod(time, cycle)
    out.saving += whole * job.stall + max(0.0, rest - job.interval)
    work = whole * job.interval + min(rest, job.interval)
    durable = max(0.0, math.floor((time - job.lag) / cycle)) if time > job.lag else 0.0
    kept = durable * job.interval if lost else work
    fast = work * (1.0 - slow / time) if slow else work
    behind = max(0.0, kept - fast) * speed * _lag(job)
    out.slow += behind
    out.useful += kept * speed - behind
    out.degraded += kept * (1.0 - speed)
    out.lost += work - kept


def _lag(job: Job) -> float:
    """Share of its work that a job with a slow host does not do."""
    return 1.0 - 1.0 / job.slow.slowdown


def young_daly(stall: float, mtbf: float) -> float:
    """Seconds of work between saves that waste least: sqrt(2 x cost of a save x mean time between failures).

    Young 1974; Daly, A higher order estimate of the optimum checkpoint interval, 2006.
    """
    return math.sqrt(2 * stall * mtbf)
