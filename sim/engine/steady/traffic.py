"""The traffic of a run with a round put in as often as it repeats: see `prestep.sim.engine.steady.rounds`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prestep.sim.engine.traffic import Traffic

# Rates are the same up to this share.
SAME_RATE = 1e-9


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

    @property
    def begun(self) -> int:
        """Activities that begin in the round."""
        return self.numbers[2] - self.numbers[1]

    def repeats(self, tolerance: float) -> bool:
        """Whether the rows are those of the round before."""
        t, (before, begin, end) = self.traffic, self.rows
        if not all(self.ordered) or begin - before != end - begin:
            return False
        if not self._same_rates(tolerance):
            return False
        if any(len(one) != len(self.under_way[0]) for one in self.under_way):
            return False
        there = np.arange(len(t.plans))
        numbered = self._renumbered(there, self.numbers, self.under_way)
        then = numbered[t.activity[before:begin]]
        same = (then == t.activity[begin:end]).all()
        return bool(same) and self._same_plans(numbered)

    def _same_rates(self, tolerance: float) -> bool:
        """Whether rates change at the same times, to the same values and for the same reason."""
        t, (before, begin, end) = self.traffic, self.rows
        earlier, now = slice(before, begin), slice(begin, end)
        late = np.abs(t.time[earlier] + self.length - t.time[now]) > tolerance
        other = np.abs(t.rate[earlier] - t.rate[now]) > SAME_RATE * t.rate[now]
        return not (late | other | (t.bound[earlier] != t.bound[now])).any()

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
        _, old, new = self.numbers
        # Rows, how many copies of the round lie before them, and the numbers that activities have there.
        pieces = [
            (slice(0, end), 0, np.arange(len(t.plans))),
            *(
                (slice(begin, end), copy, self._numbers_in(copy))
                for copy in range(1, times + 1)
            ),
            (slice(end, None), times, self._numbers_after(times)),
        ]
        return Traffic(
            plans=(*t.plans[:new], *t.plans[old:new] * times, *t.plans[new:]),
            time=np.concatenate(
                [t.time[rows] + copies * self.length for rows, copies, _ in pieces]
            ),
            activity=np.concatenate(
                [numbers[t.activity[rows]] for rows, _, numbers in pieces]
            ),
            bound=np.concatenate([t.bound[rows] for rows, _, _ in pieces]),
            rate=np.concatenate([t.rate[rows] for rows, _, _ in pieces]),
            busy=self._busy(times),
        )

    def _numbers_in(self, copy: int) -> np.ndarray:
        """The numbers that activities of the round have in one of its copies, counted from 1."""
        (_, old, new), size = self.numbers, self.begun
        numbers = np.arange(len(self.traffic.plans))
        numbers[old:new] += copy * size
        # What was under way when the round began, began in the copy before it.
        numbers[self.under_way[1]] = self.under_way[2] + (copy - 1) * size
        return numbers

    def _numbers_after(self, times: int) -> np.ndarray:
        """The numbers that activities have behind all copies."""
        numbers = np.arange(len(self.traffic.plans))
        numbers[self.numbers[1] :] += times * self.begun
        return numbers

    def _busy(self, times: int) -> dict[int, float]:
        """Shares of mean rates, by the numbers of all copies."""
        _, old, new = self.numbers
        busy: dict[int, float] = {}
        for one, share in self.traffic.busy.items():
            copies = range(times + 1) if one >= old else range(1)
            if one >= new:  # it comes behind all copies
                copies = range(times, times + 1)
            busy |= {one + copy * self.begun: share for copy in copies}
        return busy
