"""Weighted max-min fair rates of many transfers over shared links, in columns.

All activities grow at the same payload rate until a link fills or a cap is reached; those are frozen and the rest go
on (progressive filling; Bertsekas and Gallager, Data Networks, section 6.5.2). Here every link that is the tightest of
all its activities is frozen in the same round, wherever it is: what others do elsewhere can only leave it more room.
100,000 random flows over a three-tier fat tree take about seven rounds instead of hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

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

    def of_activities(self, keep: np.ndarray) -> Incidence:
        """The entries of some activities (a mask), numbered anew."""
        entries = np.repeat(keep, np.diff(self.start))
        counts = np.diff(self.start)[keep]
        start = np.concatenate([[0], np.cumsum(counts)])
        return Incidence(start, self.links[entries], self.usage[entries])


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
    used, link, free = _columns(incidence.links, bandwidth)
    result, bound = (
        np.array(caps, dtype=np.float64),
        np.full(len(caps), -1, dtype=np.int64),
    )
    here, caps = np.arange(len(caps)), result.copy()
    start, usage, act = incidence.start[:-1], incidence.usage, incidence.activity
    while len(here):
        weight = np.bincount(link, usage, len(free))
        with np.errstate(divide="ignore", invalid="ignore"):
            level = (free / weight)[link]
        least = np.minimum(np.minimum.reduceat(level, start), caps)
        # A link waits as long as one of its activities is held lower elsewhere.
        waits = np.zeros(len(free), dtype=bool)
        waits[link[level > least[act] * (1 + EQUAL)]] = True
        full = ~waits[link]
        by_link = np.logical_or.reduceat(full, start)
        frozen = by_link | (caps <= least)
        if not frozen.any():  # nothing but numbers that are not finite
            frozen[:] = True
        result[here[frozen]] = least[frozen]
        first = np.flatnonzero(full)
        holder = act[first]
        bound[here[holder[::-1]]] = (
            used[link[first[::-1]]] if used is not None else link[first[::-1]]
        )
        gone = frozen[act]
        free -= np.bincount(link[gone], usage[gone] * least[act[gone]], len(free))
        np.maximum(free, 0.0, out=free)
        stay = ~gone
        number = np.cumsum(~frozen) - 1
        link, usage, act = link[stay], usage[stay], number[act[stay]]
        here, caps = here[~frozen], caps[~frozen]
        start = np.flatnonzero(np.diff(act, prepend=-1))
    return result, bound


def _columns(
    links: np.ndarray, bandwidth: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Links in use (None: all), the entries' positions among them, and what they have free."""
    if len(links) >= SPARSE * len(bandwidth):
        return None, links, np.array(bandwidth, dtype=np.float64)
    used, link = np.unique(links, return_inverse=True)
    return used, link, bandwidth[used].astype(np.float64)


def _without_empty(
    incidence: Incidence, caps: np.ndarray, bandwidth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same where some activities use no link: those run at their caps."""
    real = incidence.usage > 0
    act = incidence.activity[real]
    counts = np.bincount(act, minlength=len(caps))
    result, bound = (
        np.array(caps, dtype=np.float64),
        np.full(len(caps), -1, dtype=np.int64),
    )
    some = counts > 0
    if some.any():
        start = np.concatenate([[0], np.cumsum(counts[some])])
        rest = Incidence(start, incidence.links[real], incidence.usage[real])
        result[some], bound[some] = rates(rest, result[some], bandwidth)
    return result, bound


def max_min_rates(
    links: Sequence[np.ndarray],
    usage: Sequence[np.ndarray],
    caps: Sequence[float],
    bandwidth: np.ndarray,
) -> list[float]:
    """The same from lists, one entry per activity: `rates` without what holds them."""
    limits = np.array(caps, dtype=np.float64)
    result, _ = rates(Incidence.of(links, usage), limits, bandwidth)
    return list(map(float, result))
