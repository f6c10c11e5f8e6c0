"""The traffic of a run with a round put in as often as it repeats: see `prestep.sim.engine.steady.rounds`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prestep.sim.engine.traffic import Traffic

# Rates are the same up to this share.
SAME_RATE = 1e-9

Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def extended(
    traffic: Traffic,
    windows: Sequence[tuple[float, float]],
    times: int,
    tolerance: float,
) -> Traffic | None:
    """With all that happens in every window put in after it.

    Parameters
    ----------
    windows
        Begin and end in seconds.
    times
        How often each is put in.
    tolerance
        Seconds up to which two times are the same.

    Returns
    -------
    None where the traffic of a window is not that of as many seconds before it.
    """
    for begin, end in reversed(windows):  # those before it keep their times
        one = _Window(traffic, begin, end)
        if not one.repeats(tolerance):
            return None
        traffic = one.put_in(times)
    return traffic


class _Window:
    """The rows of a round, and the activities that begin in it or are under way at its edges."""

    def __init__(self, traffic: Traffic, begin: float, end: float) -> None:
        self.traffic, self.length = traffic, end - begin
        edges = [begin - self.length, begin, end]
        self.rows = np.searchsorted(traffic.time, edges).tolist()
        count = len(traffic.plans)
        first, last = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(first, traffic.activity, traffic.time)
        np.maximum.at(last, traffic.activity, traffic.time)
        # In the order in which they began; without rows they are over at once.
        self.numbers = [
            int((first < edge).nonzero()[0][-1:].sum() + 1) for edge in edges
        ]
        self.under_way = [
            np.flatnonzero((first < edge) & (last >= edge)) for edge in edges
        ]
        self.ordered = [
            bool((first[:n] < edge).all() and (first[n:] >= edge).all())
            for n, edge in zip(self.numbers, edges, strict=True)
        ]

    def repeats(self, tolerance: float) -> bool:
        """Whether the rows are those of the round before."""
        t, (before, begin, end) = self.traffic, self.rows
        earlier, now = slice(before, begin), slice(begin, end)
        if not all(self.ordered) or begin - before != end - begin:
            return False
        if (np.abs(t.time[earlier] + self.length - t.time[now]) > tolerance).any():
            return False
        if (t.bound[earlier] != t.bound[now]).any():
            return False
        apart = np.abs(t.rate[earlier] - t.rate[now])
        if (apart > SAME_RATE * t.rate[now]).any():
            return False
        if any(len(one) != len(self.under_way[0]) for one in self.under_way):
            return False
        there = np.arange(len(t.plans))
        numbered = self._renumbered(there, self.numbers, self.under_way)
        then = numbered[t.activity[earlier]]
        return bool((then == t.activity[now]).all()) and self._same_plans(numbered)

    def _renumbered(
        self, numbers: np.ndarray, at: list[int], under_way: list[np.ndarray]
    ) -> np.ndarray:
        """The activities of the round before by the numbers that those like them have in this one."""
        renumbered = numbers.copy()
        renumbered[under_way[0]] = under_way[1]
        begun = np.arange(at[0], at[1])
        renumbered[begun] = begun + (at[1] - at[0])
        # Last: what is under way from one round into the next began in the round before.
        renumbered[under_way[1]] = under_way[2]
        return renumbered

    def _same_plans(self, numbered: np.ndarray) -> bool:
        """Whether activities that are like each other are of one plan."""
        t, (before, begin, _) = self.traffic, self.rows
        used = np.unique(t.activity[before:begin]).tolist()
        return all(t.plans[one] is t.plans[int(numbered[one])] for one in used)

    def put_in(self, times: int) -> Traffic:
        """The traffic with this round `times` more times."""
        t, (_, begin, end) = self.traffic, self.rows
        (_, old, new), size = self.numbers, self.numbers[2] - self.numbers[1]
        parts: list[Rows] = [_rows(t, slice(0, end), 0.0)]
        number = np.arange(len(t.plans))
        for copy in range(1, times + 1):
            time, activity, bound, rate = _rows(
                t, slice(begin, end), copy * self.length
            )
            mine = number.copy()
            mine[old:new] += copy * size
            mine[self.under_way[1]] = self.under_way[2] + (copy - 1) * size
            parts.append((time, mine[activity], bound, rate))
        time, activity, bound, rate = _rows(
            t, slice(end, len(t.time)), times * self.length
        )
        mine = number.copy()
        mine[old:] += times * size
        parts.append((time, mine[activity], bound, rate))
        plans = (*t.plans[:new], *t.plans[old:new] * times, *t.plans[new:])
        times_of, activities, bounds, rates = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        busy = self._busy(times, size)
        return Traffic(plans, times_of, activities, bounds, rates, busy)

    def _busy(self, times: int, size: int) -> dict[int, float]:
        _, old, new = self.numbers
        busy: dict[int, float] = {}
        for one, share in self.traffic.busy.items():
            if one < new:
                busy[one] = share
            if old <= one < new:
                for copy in range(1, times + 1):
                    busy[one + copy * size] = share
            if one >= new:
                busy[one + times * size] = share
        return busy


def _rows(traffic: Traffic, rows: slice, later: float) -> Rows:
    return (
        traffic.time[rows] + later,
        traffic.activity[rows],
        traffic.bound[rows],
        traffic.rate[rows],
    )
