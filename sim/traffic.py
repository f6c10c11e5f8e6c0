"""What moved over the links and when: every rate of every transfer, as columns, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sim.collectives.plan import Plan


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
    """

    plans: tuple[Plan, ...]
    time: np.ndarray
    activity: np.ndarray
    bound: np.ndarray
    rate: np.ndarray

    def segments(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows with a rate above 0, and how long each holds (seconds)."""
        order = np.lexsort((np.arange(len(self.time)), self.activity))
        following = np.full(len(self.time), -1)
        same = self.activity[order[1:]] == self.activity[order[:-1]]
        following[order[:-1][same]] = order[1:][same]
        rows = np.flatnonzero((self.rate > 0) & (following >= 0))
        return rows, self.time[following[rows]] - self.time[rows]

    def load(self, link: int) -> tuple[np.ndarray, np.ndarray]:
        """Bytes/s on one link over time: moments at which it changes, and what it carries from then on."""
        use = self._usage(link)
        step = np.zeros(len(self.time))
        last: dict[int, float] = {}
        for row in np.flatnonzero(use[self.activity] > 0).tolist():
            activity = int(self.activity[row])
            step[row] = self.rate[row] * use[activity] - last.get(activity, 0.0)
            last[activity] = float(self.rate[row] * use[activity])
        moments, at = np.unique(self.time, return_inverse=True)
        change = np.bincount(at, weights=step, minlength=len(moments))
        level = np.maximum(np.cumsum(change), 0.0)
        # What is left of nothing by rounding is nothing.
        level[level < 1e-9 * level.max(initial=0.0)] = 0.0
        kept = np.flatnonzero(np.diff(level, prepend=0.0) != 0)
        return moments[kept], level[kept]

    def _usage(self, link: int) -> np.ndarray:
        """Bytes on a link per payload byte, by activity."""
        known: dict[int, float] = {}
        for plan in self.plans:
            if id(plan) not in known:
                known[id(plan)] = float(plan.usage[plan.links == link].sum())
        return np.array([known[id(plan)] for plan in self.plans])
