"""A round of a run that repeats: when it begins and ends, and what of each stream is in it; see `rounds`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prestep.sim.graph.opgraph import SYNC, Program
from prestep.sim.graph.rounds import Shortened

# Two times are the same up to this share of the run's, s per s.
SAME = 1e-12
# A round begins this long (s) before an operation starts, so that nothing begins at its edge.
BEFORE = 1e-8
# The stream of what the host thread waits for.
HOST = -1


class Uneven(Exception):
    """The rounds of a run are not the same."""


@dataclass(frozen=True)
class Window:
    """A round that repeats: from second `begin` on, `length` s long."""

    begin: float
    length: float

    @classmethod
    def of(
        cls, short: Shortened, start: Sequence[np.ndarray], tolerance: float
    ) -> Window:
        """The last round of a step that every rank is in; the two before it have to be as long.

        Parameters
        ----------
        start
            Seconds at which the operations of every rank start in that step.
        """
        rank, one = short.fewest
        last = one.begin + (one.count - short.left_out) * one.period - 1
        at = [last - 2 * one.period, last - one.period, last]
        first, begin, end = (start[rank][at] - BEFORE).tolist()
        same(begin - first, end - begin, tolerance)
        return cls(begin, end - begin)

    @property
    def edges(self) -> tuple[float, float, float]:
        """Begin of the round before, of this one, and its end."""
        return self.begin - self.length, self.begin, self.begin + self.length

    def of_stream(
        self, start: np.ndarray, end: np.ndarray, budget: np.ndarray, tolerance: float
    ) -> tuple[int, int]:
        """The first operation of a stream that starts in the window, and the first after it; as in the round before.

        What has not started or ended has inf.
        """
        before, begin, after = np.searchsorted(start, self.edges).tolist()
        if before and end[before - 1] > self.edges[0]:
            before -= 1  # it is under way
        size = after - begin
        if size == 0 and before < begin:
            raise Uneven
        earlier, now = slice(before, after - size), slice(before + size, after)
        known = np.isfinite(end[now])
        same(start[earlier] + self.length, start[now], tolerance)
        same(end[earlier][known] + self.length, end[now][known], tolerance)
        same(budget[earlier], budget[now], tolerance)
        return begin, after


def same(one: Any, other: Any, tolerance: float) -> None:
    """Raises Uneven where they are not the same."""
    if not (np.abs(np.asarray(one) - other) <= tolerance).all():
        raise Uneven


def streams(program: Program) -> dict[int, np.ndarray]:
    """The operations of every stream; those of the host thread as stream `HOST`."""
    stream = np.where(program.kind == SYNC, HOST, program.stream)
    return {int(one): np.flatnonzero(stream == one) for one in np.unique(stream)}
