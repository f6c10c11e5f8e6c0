"""The network as fluid activities that share links by weighted max-min fairness (`sim.maxmin`).

An activity moves ``size`` payload bytes and uses ``usage[l]`` bytes of link ``l`` per payload byte. Activities that
begin, end or change their cap at one moment are one change: rates are solved once, at the end of that moment, and only
for those that share links, directly or through others, with one that changed. One event waits for the next end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
ALL = np.ones(1, dtype=bool)
NONE, NOTHING = np.empty(0, dtype=np.int64), np.empty(0)


@dataclass(eq=False)
class Activity:
    """A transfer in flight; `number` counts them in the order in which they began, `cap` is its own limit now."""

    number: int
    plan: Plan
    done: simpy.Event
    cap: float


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


class _Log:
    """Every new rate, in pieces of columns."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, np.ndarray, np.ndarray, np.ndarray]] = []

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Time, activity, bound and rate of every row."""
        if not self.pieces:
            none = np.empty(0, dtype=np.int64)
            return np.empty(0), none, none, np.empty(0)
        times, *rest = zip(*self.pieces, strict=True)
        activity, bound, rate = (np.concatenate(column) for column in rest)
        return np.repeat(np.array(times), [len(piece[1]) for piece in self.pieces]), activity, bound, rate


def cap_of(plan: Plan, speed: float) -> float:
    """Bytes/s of a plan's own cap beside kernels that leave `speed` of it; CPU threads do not notice them."""
    return plan.rate_cap if plan.on_cpu else plan.rate_cap * speed


class Network:
    """All activities in flight, as columns in the order in which they began; wakes each when its last byte is there."""

    def __init__(self, env: simpy.Environment, bandwidth: np.ndarray) -> None:
        self.env, self.bandwidth = env, bandwidth
        self.active: dict[int, Activity] = {}
        self.carried = np.zeros(len(bandwidth))
        self.solves = 0
        self._plans: list[Plan] = []
        self._log = _Log()
        self._new: list[Activity] = []  # begun at this moment
        self._clear()
        self._changed: set[int] = set()  # activities that began or got another cap at this moment
        self._left: list[np.ndarray] = []  # links of those that ended
        self._due = False  # rates are to be solved when this moment is over
        self._awaited = float("inf")  # the time of the next end that an event waits for
        self._waiting: simpy.Event | None = None  # that event

    def _clear(self) -> None:
        """No activity in flight."""
        self._number, self._uses = NONE, Incidence(np.zeros(1, np.int64), NONE, NOTHING)
        self._remaining = self._rate = self._since = self._ends = NOTHING

    @property
    def traffic(self) -> Traffic:
        """What has moved so far, rate by rate."""
        return Traffic(tuple(self._plans), *self._log.columns())

    def begin(self, plan: Plan, speed: float = 1.0) -> Transfer:
        """Starts to move a plan's bytes; ``speed`` scales its own cap (HBM shared with kernels)."""
        activity = Activity(len(self._plans), plan, self.env.event(), cap_of(plan, speed))
        self._plans.append(plan)
        self.active[activity.number] = activity
        self._new.append(activity)
        self._change(activity)
        return Transfer(self, activity)

    def limit(self, activity: Activity, speed: float) -> None:
        """Changes an activity's own cap while it is under way."""
        cap = cap_of(activity.plan, speed)
        if cap != activity.cap and activity.number in self.active:
            activity.cap = cap
            self._change(activity)

    def _change(self, activity: Activity | None = None) -> None:
        """Rates are solved when this moment is over, once for all that it changes."""
        if activity is not None:
            self._changed.add(activity.number)
        if not self._due:
            self._due = True
            self._call(self._solve, 0.0)

    def _call(self, method: Callable[[simpy.Event], None], delay: float) -> simpy.Event:
        event = simpy.Event(self.env)
        event._ok, event._value, event.callbacks = True, None, [method]
        self.env.schedule(event, LAST, delay)
        return event

    def _solve(self, _: simpy.Event) -> None:
        self.solves += 1
        self._take_in()
        now, reached = self.env.now, self._reached()
        found, bound = self._rates(reached)
        self._changed, self._left, self._due = set(), [], False
        left = self._remaining[reached] - self._rate[reached] * (now - self._since[reached])
        self._remaining[reached], self._since[reached], self._rate[reached] = left, now, found
        with np.errstate(divide="ignore", invalid="ignore"):
            self._ends[reached] = now + np.maximum(left, 0.0) / found
        self._log.pieces.append((now, self._number[reached], bound, found))
        self._await_end()

    def _take_in(self) -> None:
        """Columns of what began at this moment."""
        new, self._new = self._new, []
        if len(new) == 1 and not len(self._number):
            # The common case, a collective that has the network to itself, without the detour by lists.
            [only] = new
            plan, begun = only.plan, float(self.env.now)
            self._number = np.array([only.number])
            self._uses = Incidence(np.array([0, len(plan.links)]), plan.links, plan.usage)
            self._remaining, self._since = np.array([plan.size]), np.array([begun])
            self._rate, self._ends = np.zeros(1), np.array([begun])
        elif new:
            now = np.full(len(new), self.env.now)
            self._number = np.append(self._number, [a.number for a in new])
            self._uses = self._uses.joined(Incidence.of([a.plan.links for a in new], [a.plan.usage for a in new]))
            self._remaining = np.append(self._remaining, [a.plan.size for a in new])
            self._rate, self._ends = np.append(self._rate, 0.0 * now), np.append(self._ends, now)
            self._since = np.append(self._since, now)

    def _reached(self) -> np.ndarray:
        """Activities that share a link with what changed, directly or through others: all of them, or a mask."""
        uses = self._uses
        if len(self._number) == 1:
            return ALL
        reached = np.isin(self._number, list(self._changed))
        mark = np.zeros(len(self.bandwidth), dtype=bool)
        for links in self._left:
            mark[links] = True
        act, count = uses.activity, -1
        mark[uses.links[reached[act]]] = True
        while count != (count := int(reached.sum())):
            reached |= np.bincount(act[mark[uses.links]], minlength=len(reached)) > 0
            mark[uses.links[reached[act]]] = True
        return reached

    def _rates(self, reached: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """New rates of those activities, and what holds them."""
        caps = np.array([self.active[number].cap for number in self._number[reached].tolist()], dtype=np.float64)
        if len(self._number) == 1:
            return _alone(self._uses, caps, self.bandwidth)
        uses = self._uses if reached.all() else self._uses.of_activities(reached)
        return rates(uses, caps, self.bandwidth)

    def _await_end(self) -> None:
        """An event at the next end, unless one is there already that is early enough."""
        if (
            len(self._ends)
            and (first := float(self._ends[0] if len(self._ends) == 1 else self._ends.min())) < self._awaited
        ):
            self._awaited = first
            self._waiting = self._call(self._arrive, max(0.0, first - self.env.now))

    def _arrive(self, event: simpy.Event) -> None:
        """Ends every activity whose last byte is there."""
        if event is not self._waiting:
            return  # an earlier end has come in between
        self._awaited = float("inf")
        if self._due:
            return  # rates change at this very moment: `_solve` will see who ends
        over = self._ends <= self.env.now
        if over.any():
            self._end(over)
        self._await_end()

    def _end(self, over: np.ndarray) -> None:
        ended = [self.active.pop(number) for number in self._number[over].tolist()]
        for activity in ended:
            plan = activity.plan
            np.add.at(self.carried, plan.links, plan.usage * plan.size)
            self._left.append(plan.links)
            activity.done.succeed()
        none = np.full(len(ended), -1, dtype=np.int64)
        self._log.pieces.append((self.env.now, self._number[over], none, np.zeros(len(ended))))
        if not self.active:
            self._clear()
            self._left = []
            return
        stay = ~over
        self._number, self._uses = self._number[stay], self._uses.of_activities(stay)
        self._remaining, self._rate = self._remaining[stay], self._rate[stay]
        self._since, self._ends = self._since[stay], self._ends[stay]
        self._change()


def _alone(uses: Incidence, caps: np.ndarray, bandwidth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rate of an activity that has the network to itself, and what holds it."""
    if len(uses.links):
        with np.errstate(divide="ignore"):
            width = bandwidth[uses.links] / uses.usage
        narrowest = int(width.argmin())
        if width[narrowest] < caps[0]:
            return width[narrowest : narrowest + 1], uses.links[narrowest : narrowest + 1]
    return caps, np.array([-1])
