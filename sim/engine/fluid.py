"""The network as fluid activities that share links by weighted max-min fairness (`prestep.sim.engine.fair_share`).

An activity moves ``size`` payload bytes and uses ``usage[l]`` bytes of link ``l`` per payload byte. Activities that
begin, end or change their cap at one moment are one change: rates are looked up or solved once
(`prestep.sim.engine.sharing`), at the
end of that moment, and only for those that share links, directly or through others, with one that changed. One event
waits for the next end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import simpy

from prestep.sim.engine.clock import LAST, Clock
from prestep.sim.engine.crowding import Crowding
from prestep.sim.engine.sharing import BY_NUMBER, Sharing
from prestep.sim.engine.traffic import LinkBytes, Traffic

if TYPE_CHECKING:
    from prestep.sim.collectives.plan import Plan

__all__ = ["Activity", "Network", "Transfer"]


@dataclass(eq=False, slots=True)
class Activity:
    """A transfer in flight.

    Attributes
    ----------
    number : int
        Counts them in the order in which they began.
    shape : int
        Of its plan; see `prestep.sim.engine.sharing`.
    cap : float
        Its own limit now, bytes/s.
    left, since, rate, end : float
        Bytes left at second ``since``, bytes/s from then on, and when that ends.
    """

    number: int
    plan: Plan
    shape: int
    done: simpy.Event
    cap: float
    left: float
    since: float
    end: float
    rate: float = 0.0

    def proceed(self, now: float, rate: float) -> None:
        """Moves its bytes at another rate from now on."""
        self.left -= self.rate * (now - self.since)
        self.since, self.rate = now, rate
        self.end = now + max(self.left, 0.0) / rate if rate > 0 else float("inf")


@dataclass(eq=False, slots=True)
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


class _Log:
    """Every new rate: time, activity, bound and rate."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, int, float]] = []

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        # In one pass: a list of millions of rows is slow to take apart by columns. Numbers of activities are exact.
        flat = np.fromiter(chain.from_iterable(self.rows), np.float64)
        table = flat.reshape(-1, 4)
        return (
            table[:, 0].copy(),
            table[:, 1].astype(np.int64),
            table[:, 2].astype(np.int64),
            table[:, 3].copy(),
        )


def cap_of(plan: Plan, speed: float) -> float:
    """Bytes/s of a plan's own cap beside kernels that leave `speed` of it; CPU threads do not notice them."""
    return plan.rate_cap if plan.on_cpu else plan.rate_cap * speed


class Network:
    """All activities in flight, in the order in which they began; wakes each when its last byte is there."""

    def __init__(self, env: Clock, bandwidth: np.ndarray) -> None:
        self.env, self.bandwidth = env, bandwidth
        self.active: dict[int, Activity] = {}
        self.sharing = Sharing(bandwidth)
        self._plans: list[Plan] = []
        self.chains = Crowding(self.sharing, self.active)
        self._busy: dict[int, float] = {}  # of flows at a mean rate: see `flow`
        # Payload bytes of what has ended, and its plan, by shape.
        self._moved: dict[int, tuple[Plan, float]] = {}
        self._log = _Log()
        self._changed: dict[
            int, Activity
        ] = {}  # activities that began or got another cap at this moment
        self._left: list[int] = []  # shapes of those that ended
        self._due = False  # rates are to be solved when this moment is over
        self._ends: list[
            tuple[float, int]
        ] = []  # heap of ends, also of such as have moved since
        self._awaited = float("inf")  # the time of the next end that an event waits for
        self._waiting: simpy.Event | None = None  # that event

    @property
    def solves(self) -> int:
        """Solutions of rates; what was remembered is not solved again."""
        return self.sharing.solves

    # -- chains -----------------------------------------------------------------------------------
    def flow(self, plan: Plan, busy: float) -> int:
        """The number of a flow at a mean rate, which is under way for the share `busy` of its time."""
        number = len(self._plans)
        self._plans.append(plan)
        self._busy[number] = busy
        return number

    def set_flow(self, number: int, bound: int, rate: float) -> None:
        """The mean rate of a flow from now on (payload bytes/s)."""
        self._log.rows.append((self.env.now, number, bound, rate))

    def count(self, plan: Plan, size: float) -> None:
        """So many bytes of a plan have flowed."""
        shape = self.sharing.shapes.of(plan)
        self._count(shape, plan, size)

    def _count(self, shape: int, plan: Plan, size: float) -> None:
        _, before = self._moved.get(shape, (plan, 0.0))
        self._moved[shape] = plan, before + size

    @property
    def bytes(self) -> LinkBytes:
        """Bytes of every link for transfers that have ended."""
        return LinkBytes(tuple(self._moved.values()), len(self.bandwidth))

    @property
    def carried(self) -> np.ndarray:
        """Bytes that every link has carried for transfers that have ended."""
        return self.bytes.carried

    @property
    def traffic(self) -> Traffic:
        """What has moved so far, rate by rate."""
        return Traffic(tuple(self._plans), *self._log.columns(), busy=self._busy)

    def begin(self, plan: Plan, speed: float = 1.0, own: bool = False) -> Transfer:
        """Starts to move a plan's bytes; ``speed`` scales its own cap (HBM shared with kernels).

        ``own``: it is part of a chain, of which others know already.
        """
        number, now = len(self._plans), self.env.now
        shape, done = self.sharing.shapes.of(plan), simpy.Event(self.env)
        activity = Activity(
            number, plan, shape, done, cap_of(plan, speed), plan.size, now, now
        )
        self._plans.append(plan)
        self.active[number] = activity
        if not own:
            self.chains.disturb_near(shape)
        self._change(activity)
        return Transfer(self, activity)

    def limit(self, activity: Activity, speed: float) -> None:
        """Changes an activity's own cap while it is under way."""
        cap = cap_of(activity.plan, speed)
        if cap != activity.cap and activity.number in self.active:
            activity.cap = cap
            self._change(activity)

    def _change(self, activity: Activity) -> None:
        """Rates are solved when this moment is over, once for all that it changes."""
        self._changed[activity.number] = activity
        self._solve_soon()

    def _solve_soon(self) -> None:
        if not self._due:
            self._due = True
            self._call(self._solve, 0.0)

    def _call(self, method: Callable[[simpy.Event], None], delay: float) -> simpy.Event:
        event = self.env.after(delay, LAST)
        event.callbacks.append(method)
        return event

    def _solve(self, _: simpy.Event) -> None:
        groups = self.sharing.reached(self.active, self._changed.values(), self._left)
        self._changed, self._left, self._due = {}, [], False
        now, log = self.env.now, []
        for group in groups:
            for activity, rate, bound in zip(
                group, *self.sharing.rates(group), strict=True
            ):
                activity.proceed(now, rate)
                heappush(self._ends, (activity.end, activity.number))
                log.append((activity.number, bound, rate))
        rows = sorted(log) if len(groups) > 1 else log
        self._log.rows += [(now, *row) for row in rows]
        self._await_end()

    def _first(self) -> Activity | None:
        """The activity that ends first, as things are."""
        while self._ends:
            end, number = self._ends[0]
            activity = self.active.get(number)
            if activity is not None and activity.end == end:
                return activity
            heappop(self._ends)
        return None

    def _await_end(self) -> None:
        """An event at the next end, unless one is there already that is early enough."""
        first = self._first()
        if first is not None and first.end < self._awaited:
            self._awaited = first.end
            self._waiting = self._call(self._arrive, max(0.0, first.end - self.env.now))

    def _arrive(self, event: simpy.Event) -> None:
        """Ends every activity whose last byte is there."""
        if event is not self._waiting:
            return  # an earlier end has come in between
        self._awaited = float("inf")
        if self._due:
            return  # rates change at this very moment: `_solve` will see who ends
        over = []
        while (first := self._first()) is not None and first.end <= self.env.now:
            heappop(self._ends)
            over.append(self.active.pop(first.number))
        if len(over) > 1:
            over.sort(key=BY_NUMBER)
        for activity in over:
            self._count(activity.shape, activity.plan, activity.plan.size)
            self._log.rows.append((self.env.now, activity.number, -1, 0.0))
            if self.sharing.leaves_room(activity.shape, self.active):
                self._left.append(activity.shape)
                self._solve_soon()
        self._await_end()
        # Nothing else is left to happen at this moment but what comes last: see LAST.
        for activity in over:
            activity.done.succeed()
