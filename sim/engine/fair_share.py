"""Weighted max-min fair rates of many transfers over shared links, in columns.

All activities grow at the same payload rate until a link fills or a cap is reached; those are frozen and the rest go
on (progressive filling; Bertsekas and Gallager, Data Networks, section 6.5.2). Here every link that is the tightest of
all its activities is frozen in the same round, wherever it is: what happens elsewhere can only leave it more room.
100,000 random flows over a three-tier fat tree take about seven rounds instead of hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prestep.topologies.core.links import compact

# Relative: levels of two links that differ by less count as equal, so that symmetric links freeze in one round.
EQUAL = 1e-9
# Incidences below this share of the fabric's links: number the links in use anew instead of making columns for all.
SPARSE = 0.25


@dataclass(frozen=True, eq=False)
class Incidence:
    """Which activity uses which link: activity ``a`` has the entries ``start[a]`` to ``start[a + 1]``.

    Attributes
    ----------
    start : np.ndarray of int, shape (activities + 1,)
    links : np.ndarray of int, shape (entries,)
        Rows of the table of links.
    usage : np.ndarray of float, shape (entries,)
        Bytes on that link per payload byte.
    """

    start: np.ndarray
    links: np.ndarray
    usage: np.ndarray

    @classmethod
    def of(cls, links: Sequence[np.ndarray], usage: Sequence[np.ndarray]) -> Incidence:
        """From one array of links and one of usages per activity."""
        start = np.zeros(len(links) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, links), np.int64, len(links)), out=start[1:])
        if not len(links):
            return cls(start, np.empty(0, np.int64), np.empty(0))
        return cls(
            start,
            np.concatenate(links).astype(np.int64),
            np.concatenate(usage).astype(np.float64),
        )

    @cached_property
    def activity(self) -> np.ndarray:
        """The activity of every entry."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def joined(self, other: Incidence) -> Incidence:
        """These activities, and then those of another."""
        start = np.concatenate([self.start, other.start[1:] + self.start[-1]])
        return Incidence(
            start,
            np.concatenate([self.links, other.links]),
            np.concatenate([self.usage, other.usage]),
        )


def rates(
    incidence: Incidence, caps: np.ndarray, bandwidth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Payload rates (bytes/s) of all activities, and what holds each.

    Parameters
    ----------
    incidence : Incidence
    caps : np.ndarray, shape (activities,)
        Bytes/s that an activity cannot exceed by itself; may be inf.
    bandwidth : np.ndarray, shape (links of the fabric,)
        Bytes/s.

    Returns
    -------
    rates : np.ndarray, shape (activities,)
    bound : np.ndarray of int, shape (activities,)
        The first full link that holds the activity, -1 where its own cap does.
    """
    counts = np.diff(incidence.start)
    if not (incidence.usage > 0).all() or not counts.all():
        return _without_empty(incidence, caps, bandwidth)
    filling = _Filling(incidence, caps, bandwidth)
    with np.errstate(divide="ignore", invalid="ignore"):
        while len(filling.growing):
            filling.fill()
    return filling.rates, filling.bound


class _Filling:
    """Progressive filling: the activities that still grow, with their entries, and what the links have free."""

    def __init__(
        self, incidence: Incidence, caps: np.ndarray, bandwidth: np.ndarray
    ) -> None:
        self.rates = np.array(caps, dtype=np.float64)
        self.bound = np.full(len(caps), -1, dtype=np.int64)
        self.used, self.link, self.free = _columns(incidence.links, bandwidth)
        self.growing, self.caps = np.arange(len(caps)), self.rates.copy()
        self.start, self.usage = incidence.start[:-1], incidence.usage
        self.activity = incidence.activity

    def fill(self) -> None:
        """Fills until every link that is the tightest of all its activities is full, and freezes those."""
        weight = np.bincount(self.link, self.usage, len(self.free))
        level = (self.free / weight)[self.link]
        lowest = np.minimum(np.minimum.reduceat(level, self.start), self.caps)
        full = self._full(level, lowest)
        frozen = np.logical_or.reduceat(full, self.start) | (self.caps <= lowest)
        if not frozen.any():  # nothing but numbers that are not finite
            frozen[:] = True
        self.rates[self.growing[frozen]] = lowest[frozen]
        self._bind(full)
        self._freeze(frozen, lowest)

    def _full(self, level: np.ndarray, lowest: np.ndarray) -> np.ndarray:
        """Entries whose link fills now; a link waits while one of its activities is held lower elsewhere."""
        waits = np.zeros(len(self.free), dtype=bool)
        held_elsewhere = level > lowest[self.activity] * (1 + EQUAL)
        waits[self.link[held_elsewhere]] = True
        full: np.ndarray = ~waits[self.link]
        return full

    def _bind(self, full: np.ndarray) -> None:
        """Notes the first full link of every activity that has one (backwards: the last to be written stays)."""
        entries = np.flatnonzero(full)[::-1]
        links = self.link[entries]
        activities = self.growing[self.activity[entries]]
        self.bound[activities] = links if self.used is None else self.used[links]

    def _freeze(self, frozen: np.ndarray, lowest: np.ndarray) -> None:
        """Takes the frozen activities' share from the links, and then the activities out."""
        if frozen.all():
            self.growing = self.growing[:0]
            return
        gone = frozen[self.activity]
        taken = self.usage[gone] * lowest[self.activity[gone]]
        self.free -= np.bincount(self.link[gone], taken, len(self.free))
        np.maximum(self.free, 0.0, out=self.free)
        stay, number = ~gone, np.cumsum(~frozen) - 1
        self.link, self.usage = self.link[stay], self.usage[stay]
        self.activity = number[self.activity[stay]]
        self.growing, self.caps = self.growing[~frozen], self.caps[~frozen]
        self.start = np.flatnonzero(np.diff(self.activity, prepend=-1))


def _columns(
    links: np.ndarray, bandwidth: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Links in use (None: all), the entries' positions among them, and what they have free."""
    if len(links) >= SPARSE * len(bandwidth):
        return None, links, np.array(bandwidth, dtype=np.float64)
    used, link = compact(links)
    return used, link, bandwidth[used].astype(np.float64)


def _without_empty(
    incidence: Incidence, caps: np.ndarray, bandwidth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`rates` where some activities use no link: those run at their caps."""
    real = incidence.usage > 0
    act = incidence.activity[real]
    counts = np.bincount(act, minlength=len(caps))
    result = np.array(caps, dtype=np.float64)
    bound = np.full(len(caps), -1, dtype=np.int64)
    on_links = counts > 0
    if on_links.any():
        start = np.concatenate([[0], np.cumsum(counts[on_links])])
        rest = Incidence(start, incidence.links[real], incidence.usage[real])
        result[on_links], bound[on_links] = rates(rest, result[on_links], bandwidth)
    return result, bound
