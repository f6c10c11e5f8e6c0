"""What moved over the links and when: every rate of every transfer, as columns, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from prestep.sim.collectives.plan import Plan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LinkBytes:
    """Bytes that every link has carried; arrays of shape (links,), added up when somebody asks.

    Attributes
    ----------
    moved : tuple of (plan, float)
        Plans, and the payload bytes that have moved by each.
    links : int
        How many links there are.
    """

    moved: tuple[tuple[Plan, float], ...]
    links: int

    @cached_property
    def carried(self) -> Floats:
        """For the simulated transfers."""
        return self._sum()

    @cached_property
    def everywhere(self) -> Floats:
        """With transfers on other hosts that stand for the same."""
        return self._sum(copied=True)

    @cached_property
    def data(self) -> Floats:
        """What is data of `carried`, without the flags and headers that links carry beside it."""
        return self._sum(data=True)

    @cached_property
    def data_everywhere(self) -> Floats:
        """What is data of `everywhere`."""
        return self._sum(data=True, copied=True)

    def _sum(self, data: bool = False, copied: bool = False) -> Floats:
        total = np.zeros(self.links)
        for plan, size in self.moved:
            usage = plan.data_usage if data else plan.usage
            np.add.at(total, plan.links, usage * size * (plan.copies if copied else 1))
        return total

    @cached_property
    def copies(self) -> Floats:
        """How many links each one stands for."""
        copies = np.zeros(self.links)
        for plan, _ in self.moved:
            np.maximum.at(copies, plan.links, plan.copies)
        return copies


@dataclass(frozen=True, eq=False)
class Traffic:
    """Transfers of a run; row i says that from ``time[i]`` on ``activity[i]`` moves at ``rate[i]``.

    Attributes
    ----------
    plans : tuple of Plan
        What each activity was, in the order in which they began.
    time : np.ndarray of float, shape (changes,)
        Seconds, never falling.
    activity : np.ndarray of int, shape (changes,)
        Index into `plans`.
    bound : np.ndarray of int, shape (changes,)
        The first full link that holds the activity at that rate; -1: its own cap, or it has ended.
    rate : np.ndarray of float, shape (changes,)
        Payload bytes/s; 0 at its end.
    busy : mapping of int to float
        Of activities that stand for many transfers at their mean rate: the share of the time in which one is under way.
    """

    plans: tuple[Plan, ...]
    time: np.ndarray
    activity: np.ndarray
    bound: np.ndarray
    rate: np.ndarray
    busy: Mapping[int, float] = field(default_factory=dict)

    @cached_property
    def _following(self) -> Ints:
        """For every row the next one of its activity; -1 for the last."""
        order = np.lexsort((np.arange(len(self.time)), self.activity))
        following = np.full(len(self.time), -1)
        same = self.activity[order[1:]] == self.activity[order[:-1]]
        following[order[:-1][same]] = order[1:][same]
        return following

    @cached_property
    def _change(self) -> Floats:
        """By how much every row changes the rate of its activity (bytes/s)."""
        change = self.rate.copy()
        rows = np.flatnonzero(self._following >= 0)
        change[self._following[rows]] -= self.rate[rows]
        return change

    def segments(self) -> tuple[Ints, Floats, Floats]:
        """Stretches of one rate: their rows, and when each begins and ends (seconds)."""
        rows = np.flatnonzero((self.rate > 0) & (self._following >= 0))
        return rows, self.time[rows], self.time[self._following[rows]]

    def under_way(self) -> tuple[Ints, Floats, Floats]:
        """The same; of mean rates as long as transfers are under way, from the begin of the stretch on."""
        rows, begin, end = self.segments()
        activities = self.activity[rows].tolist()
        busy = np.array([self.busy.get(a, 1.0) for a in activities])
        return rows, begin, begin + (end - begin) * busy

    def load(self, link: int) -> tuple[Floats, Floats]:
        """Bytes/s on one link over time: the moments at which it changes, and what it carries from each on."""
        moments, at = np.unique(self.time, return_inverse=True)
        step = self._change * self._usage(link)[self.activity]
        level = np.maximum(
            np.cumsum(np.bincount(at, weights=step, minlength=len(moments))), 0.0
        )
        # What is left of nothing by rounding is nothing.
        level[level < 1e-9 * level.max(initial=0.0)] = 0.0
        kept = np.flatnonzero(np.diff(level, prepend=0.0) != 0)
        return moments[kept], level[kept]

    def _usage(self, link: int) -> Floats:
        """Bytes on a link per payload byte, by activity."""
        used = [float(p.usage[p.links == link].sum()) for p in self._distinct]
        return np.array(used)[self._which]

    @cached_property
    def _which(self) -> Ints:
        """Of every activity, the place of its plan among the distinct ones."""
        places = {id(plan): at for at, plan in enumerate(self._distinct)}
        return np.array([places[id(plan)] for plan in self.plans], dtype=np.int64)

    @cached_property
    def _distinct(self) -> list[Plan]:
        return list({id(plan): plan for plan in self.plans}.values())

    def seconds(self) -> list[tuple[Plan, float]]:
        """Every distinct plan with the time for which it was under way, all its transfers together (seconds)."""
        rows, begin, end = self.under_way()
        spent = np.bincount(
            self.activity[rows], weights=end - begin, minlength=len(self.plans)
        )
        total = dict.fromkeys(map(id, self._distinct), 0.0)
        for plan, time in zip(self.plans, spent.tolist(), strict=True):
            total[id(plan)] += time
        return [(plan, total[id(plan)]) for plan in self._distinct]


def means(moments: Floats, level: Floats, edges: Floats) -> Floats:
    """Means of a step function, as `Traffic.load` gives it, between neighbouring edges (edges rise)."""
    if not len(moments):
        return np.zeros(len(edges) - 1)
    times = np.concatenate(
        [[min(edges[0], moments[0])], moments, [max(edges[-1], moments[-1])]]
    )
    area = np.concatenate([[0.0, 0.0], np.cumsum(level * np.diff(times[1:]))])
    averages: Floats = np.diff(np.interp(edges, times, area)) / np.diff(edges)
    return averages
