"""The network as fluid activities that share links by weighted max-min fairness (`sim.maxmin`).

An activity moves ``size`` payload bytes and uses ``usage[l]`` bytes of link ``l`` per payload byte. Activities that
begin, end or change their cap at one moment are one change: rates are solved once, at the end of that moment, and only
for those that share links, directly or through others, with one that changed. One event waits for the next end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import simpy
from simpy.core import EventPriority

from sim.maxmin import Incidence, max_min_rates, rates
from sim.traffic import Traffic

if TYPE_CHECKING:
    from sim.collectives.plan import Plan

__all__ = ["Activity", "Network", "Transfer", "max_min_rates"]

# After everything else that happens at the same time (simpy: 0 is urgent, 1 ordinary).
LAST = EventPriority(2)


@dataclass(eq=False)
class Activity:
    """A transfer in flight; `number` counts them in the order in which they began."""

    number: int
    plan: Plan
    remaining: float
    done: simpy.Event
    cap: float
    since: float
    rate: float = 0.0
    version: int = 0


@dataclass(frozen=True, eq=False)
class Transfer:
    """What the starter of an activity holds of it."""

    network: Network
    activity: Activity

    @property
    def done(self) -> simpy.Event:
        return self.activity.done

    def limit(self, speed: float) -> None:
        """Scales the plan's own cap from now on."""
        self.network.limit(self.activity, speed)


@dataclass
class _Log:
    """Every new rate of every activity, as columns; `bound` is the link that holds it (-1: its own cap)."""

    time: list[float] = field(default_factory=list)
    activity: list[int] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    bound: list[int] = field(default_factory=list)

    def add(self, time: float, activity: int, rate: float, bound: int) -> None:
        self.time.append(time)
        self.activity.append(activity)
        self.rate.append(rate)
        self.bound.append(bound)


class Network:
    """All activities in flight; wakes each when its last byte has arrived."""

    def __init__(self, env: simpy.Environment, bandwidth: np.ndarray) -> None:
        self.env, self.bandwidth = env, bandwidth
        self.active: dict[int, Activity] = {}
        self.carried = np.zeros(len(bandwidth))
        self.solves = 0
        self._plans: list[Plan] = []
        self._log = _Log()
        self._changed: dict[int, np.ndarray] = {}  # what came, went or got another cap at this moment, with its links
        self._ends: list[tuple[float, int, int]] = []  # heap of (time, activity, version); old versions are skipped
        self._awaited = float("inf")  # the time of the event that waits for the next end

    @property
    def traffic(self) -> Traffic:
        """What has moved so far, rate by rate."""
        log = self._log
        activity, bound = (np.array(column, dtype=np.int64) for column in (log.activity, log.bound))
        time, rate = (np.array(column, dtype=np.float64) for column in (log.time, log.rate))
        return Traffic(tuple(self._plans), time, activity, bound, rate)

    def begin(self, plan: Plan, speed: float = 1.0) -> Transfer:
        """Starts to move a plan's bytes; ``speed`` scales its own cap (HBM shared with kernels)."""
        number = len(self._plans)
        self._plans.append(plan)
        activity = Activity(number, plan, plan.size, self.env.event(), plan.rate_cap * speed, self.env.now)
        self.active[number] = activity
        self._change(activity)
        return Transfer(self, activity)

    def limit(self, activity: Activity, speed: float) -> None:
        """Changes an activity's own cap while it is under way."""
        cap = activity.plan.rate_cap * speed
        if cap != activity.cap and activity.number in self.active:
            activity.cap = cap
            self._change(activity)

    def _change(self, activity: Activity) -> None:
        """Rates are solved when this moment is over, once for all that it changes."""
        if not self._changed:
            self._call(self._solve, 0.0)
        self._changed[activity.number] = activity.plan.links

    def _call(self, method: Callable[[simpy.Event], None], delay: float) -> None:
        event = simpy.Event(self.env)
        event._ok, event._value, event.callbacks = True, None, [method]
        self.env.schedule(event, LAST, delay)

    def _solve(self, _: simpy.Event) -> None:
        self.solves += 1
        touched, found, bound = self._rates(list(self.active.values()))
        self._changed = {}
        now = self.env.now
        for a, rate, link in zip(touched, found, bound, strict=True):
            a.remaining -= a.rate * (now - a.since)
            a.since, a.rate = now, rate
            a.version += 1
            heapq.heappush(self._ends, (now + max(0.0, a.remaining) / rate, a.number, a.version))
            self._log.add(now, a.number, rate, link)
        self._await_end()

    def _rates(self, active: list[Activity]) -> tuple[list[Activity], list[float], list[int]]:
        """Activities that the change reaches, their new rates and what holds them."""
        if len(active) == 1:
            return active, *_alone(active[0], self.bandwidth)
        incidence = Incidence.of([a.plan.links for a in active], [a.plan.usage for a in active])
        reached = self._reached(incidence, np.array([a.number in self._changed for a in active], dtype=bool))
        touched = [a for a, hit in zip(active, reached.tolist(), strict=True) if hit]
        caps = np.array([a.cap for a in touched], dtype=np.float64)
        found, bound = rates(incidence.of_activities(reached), caps, self.bandwidth)
        return touched, found.tolist(), bound.tolist()

    def _reached(self, incidence: Incidence, reached: np.ndarray) -> np.ndarray:
        """Activities that share a link with a changed one, directly or through others (mask)."""
        mark = np.zeros(len(self.bandwidth), dtype=bool)
        for links in self._changed.values():
            mark[links] = True
        act, count = incidence.activity, -1
        while count != (count := int(reached.sum())):
            reached = reached | (np.bincount(act[mark[incidence.links]], minlength=len(reached)) > 0)
            mark[incidence.links[reached[act]]] = True
        return reached

    def _await_end(self) -> None:
        """An event at the next end, unless one is there already that is early enough."""
        while self._ends and not self._valid(self._ends[0]):
            heapq.heappop(self._ends)
        if self._ends and self._ends[0][0] < self._awaited:
            self._awaited = self._ends[0][0]
            self._call(self._arrive, max(0.0, self._awaited - self.env.now))

    def _valid(self, end: tuple[float, int, int]) -> bool:
        activity = self.active.get(end[1])
        return activity is not None and activity.version == end[2]

    def _arrive(self, _: simpy.Event) -> None:
        """Ends every activity whose last byte is there."""
        self._awaited = float("inf")
        while self._ends and (self._ends[0][0] <= self.env.now or not self._valid(self._ends[0])):
            end = heapq.heappop(self._ends)
            if self._valid(end):
                self._end(self.active.pop(end[1]))
        self._await_end()

    def _end(self, activity: Activity) -> None:
        plan = activity.plan
        np.add.at(self.carried, plan.links, plan.usage * plan.size)
        self._log.add(self.env.now, activity.number, 0.0, -1)
        activity.done.succeed()
        if self.active:
            self._change(activity)


def _alone(activity: Activity, bandwidth: np.ndarray) -> tuple[list[float], list[int]]:
    """The rate of an activity that has the network to itself, and what holds it."""
    plan = activity.plan
    if not len(plan.links):
        return [activity.cap], [-1]
    with np.errstate(divide="ignore"):
        width = bandwidth[plan.links] / plan.usage
    narrowest = int(width.argmin())
    if activity.cap <= width[narrowest]:
        return [activity.cap], [-1]
    return [float(width[narrowest])], [int(plan.links[narrowest])]
