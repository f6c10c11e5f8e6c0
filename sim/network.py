"""The network as fluid activities that share links by weighted max-min fairness.

An activity moves ``size`` payload bytes and uses ``usage[l]`` bytes of link ``l`` per payload byte.
Rates are the weighted max-min fair ones (progressive filling; Bertsekas and Gallager, Data Networks,
section 6.5.2), bounded by each activity's own cap. Only activities that share links, directly or through
others, with one that came or went are solved again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

if TYPE_CHECKING:
    from sim.collectives.plan import Plan


@dataclass(eq=False)
class Activity:
    """A transfer in flight."""

    plan: Plan
    remaining: float
    done: simpy.Event
    links: np.ndarray
    usage: np.ndarray
    cap: float
    rate: float = 0.0
    since: float = 0.0
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


def max_min_rates(
    links: Sequence[np.ndarray], usage: Sequence[np.ndarray], caps: Sequence[float], bandwidth: np.ndarray
) -> list[float]:
    """Weighted max-min fair payload rates (bytes/s) of activities over links of the given bandwidth.

    All activities grow at the same payload rate until a link fills or a cap is reached; those are frozen
    and the rest go on. Ends after at most one round per activity.
    """
    n = len(links)
    rates = [0.0] * n
    free = {int(link): float(bandwidth[link]) for ls in links for link in ls}
    active = set(range(n))
    level = 0.0
    while active:
        weight: dict[int, float] = {}
        for a in active:
            for link, u in zip(links[a], usage[a], strict=True):
                weight[int(link)] = weight.get(int(link), 0.0) + float(u)
        step = min((free[link] / w for link, w in weight.items() if w > 0), default=float("inf"))
        step = max(0.0, min(step, min(caps[a] for a in active) - level))
        level += step
        for link, w in weight.items():
            free[link] -= w * step
        full = {link for link, w in weight.items() if w > 0 and free[link] <= 1e-9 * float(bandwidth[link])}
        frozen = {a for a in active if caps[a] - level <= 1e-9 * caps[a] or any(int(x) in full for x in links[a])}
        for a in frozen or set(active):
            rates[a] = level
        active -= frozen or set(active)
    return rates


def cap_of(plan: Plan, speed: float) -> float:
    """Bytes/s of a plan's own cap beside kernels that leave `speed` of it; CPU threads do not notice them."""
    return plan.rate_cap if plan.on_cpu else plan.rate_cap * speed


class Network:
    """All activities in flight; wakes each when its last byte has arrived."""

    def __init__(self, env: simpy.Environment, bandwidth: np.ndarray) -> None:
        self.env, self.bandwidth = env, bandwidth
        self.active: list[Activity] = []
        self.carried = np.zeros(len(bandwidth))
        self.solves = 0

    def begin(self, plan: Plan, speed: float = 1.0) -> Transfer:
        """Starts to move a plan's bytes; ``speed`` scales its own cap (HBM shared with kernels)."""
        activity = Activity(plan, plan.size, self.env.event(), plan.links, plan.usage, cap_of(plan, speed))
        activity.since = self.env.now
        self.active.append(activity)
        self._solve(activity)
        return Transfer(self, activity)

    def limit(self, activity: Activity, speed: float) -> None:
        """Changes an activity's own cap while it is under way."""
        cap = cap_of(activity.plan, speed)
        if cap != activity.cap and not activity.done.triggered:
            activity.cap = cap
            self._solve(activity)

    def _component(self, start: Activity) -> list[Activity]:
        links = set(start.links.tolist())
        rest, found = [a for a in self.active if a is not start], [start]
        while True:
            near = [a for a in rest if not links.isdisjoint(a.links.tolist())]
            if not near:
                return [a for a in found if a in self.active]
            found += near
            rest = [a for a in rest if a not in near]
            for a in near:
                links.update(a.links.tolist())

    def _solve(self, changed: Activity) -> None:
        self.solves += 1
        now = self.env.now
        touched = self._component(changed)
        rates = max_min_rates(
            [a.links for a in touched], [a.usage for a in touched], [a.cap for a in touched], self.bandwidth
        )
        for a, rate in zip(touched, rates, strict=True):
            a.remaining -= a.rate * (now - a.since)
            a.since, a.rate = now, rate
            a.version += 1
            self.env.process(self._finish(a, a.version, max(0.0, a.remaining) / rate))

    def _finish(self, activity: Activity, version: int, delay: float) -> Generator[Any, Any, None]:
        yield self.env.timeout(delay)
        if activity.version == version and not activity.done.triggered:
            self.active.remove(activity)
            np.add.at(self.carried, activity.links, activity.usage * activity.plan.size)
            activity.done.succeed()
            self._solve(activity) if self.active else None
