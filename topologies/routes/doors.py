"""Doors: the links by which pairs of nodes leave one host and enter another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from prestep.topologies.core.links import Bools, Ints, distinct
from prestep.topologies.routes.net import Net
from prestep.topologies.routes.stubs import FAR, Pattern, Stubs

_COST = 1 << 10  # more CPUs than any path passes


class Doors(NamedTuple):
    """Of every pair: its row out and its row in, whether they have one way alone, and how many are as good."""

    leave: Ints
    enter: Ints
    single: Bools
    best: Ints

    def of(self, which: Ints) -> Doors:
        """The doors of some pairs."""
        leave, enter, single, best = self
        return Doors(leave[which], enter[which], single[which], best[which])


def no_doors(pairs: int) -> Doors:
    """For pairs of hosts that the network does not join, or not by doors alone."""
    zeros = np.zeros(pairs, dtype=np.int64)
    return Doors(zeros, zeros, np.zeros(pairs, dtype=bool), zeros)


@dataclass(frozen=True, eq=False)
class Choice:
    """The doors among which pairs choose.

    Attributes
    ----------
    away, home : array (3, pairs, doors)
        Hops, CPUs and number of best ways from the first node to each door, and from each door to the second.
    distance : array (pairs, doors out, doors in)
        Hops between the switches behind the doors.
    enters : array (doors in)
        1 where a door leads into a CPU.
    transit : int
        Fewest hops through a host from one switch to another.
    """

    away: Ints
    home: Ints
    distance: Ints
    enters: Ints
    transit: int

    def cheapest(self, nth: int) -> Doors:
        """The doors with the fewest hops, then with the fewest CPUs; of several as good the ``nth``."""
        cost = self._cost()
        pairs = np.arange(len(cost))
        least = cost.min(axis=1)
        as_good = cost == least[:, None]
        best = as_good.sum(axis=1)
        wanted = np.minimum(nth + 1, best)
        place = np.argmax(np.cumsum(as_good, axis=1) == wanted[:, None], axis=1)
        leave, enter = np.divmod(place, self.home.shape[2])
        single = self.away[2][pairs, leave] == 1
        single &= self.home[2][pairs, enter] == 1
        single &= self._direct(least) & _plain(cost, least)
        return Doors(leave, enter, single, best)

    def best(self) -> tuple[Bools, Bools]:
        """Of every pair: which combinations of doors are as good as any, and whether these have all the best ways."""
        cost = self._cost()
        least = cost.min(axis=1)
        as_good = cost == least[:, None]
        lone = (self.away[2][:, :, None] == 1) & (self.home[2][:, None, :] == 1)
        whole = (lone.reshape(cost.shape) | ~as_good).all(axis=1)
        return as_good.reshape(lone.shape), whole & self._direct(least) & _plain(
            cost, least
        )

    @property
    def fewest(self) -> Ints:
        """Of every pair: no way by doors has fewer hops, directly or through a third host."""
        direct = (self._cost().min(axis=1)) // _COST
        to_door, from_door = self.away[0].min(axis=1), self.home[0].min(axis=1)
        fewest: Ints = np.minimum(direct, to_door + from_door + 2 + self.transit)
        return fewest

    def _cost(self) -> Ints:
        """Hops and CPUs of every pair by every two doors, as one number."""
        out = (self.away[0] + 2) * _COST + self.away[1]
        back = self.home[0] * _COST + self.home[1] + self.enters
        cost: Ints = out[:, :, None] + back[:, None, :]
        # In place: racks have 72 doors each, so a pair has thousands of ways.
        cost += self.distance * _COST
        return cost.reshape(len(cost), -1)

    def _direct(self, least: Ints) -> Bools:
        """Whether no way through a third host is as short."""
        hops = least // _COST
        to_door = self.away[0].min(axis=1)
        from_door = self.home[0].min(axis=1)
        around = to_door + from_door + 2 + self.transit
        direct: Bools = (hops < around) & (hops < FAR)
        return direct


def _plain(cost: Ints, least: Ints) -> Bools:
    """Whether CPUs do not matter: the best way has none, or every way has some.

    Where there are ways with a CPU and without, the router chooses: it may prefer a longer one.
    """
    reachable = cost // _COST < FAR
    by_cpu = np.where(reachable, cost % _COST > 0, True).all(axis=1)
    plain: Bools = (least % _COST == 0) | by_cpu
    return plain


@dataclass(frozen=True, eq=False)
class Gates:
    """The doors of all hosts, and the switches behind them."""

    stubs: Stubs
    net: Net

    def joined(self, first: Pattern, second: Pattern) -> bool:
        """Whether doors alone lead from hosts of one pattern to those of another."""
        return bool(first.doors[0] and second.doors[1] and self.stubs.transit)

    def alike(
        self, first: Pattern, second: Pattern, src: Ints, dst: Ints
    ) -> tuple[Ints, Ints]:
        """One of all pairs in the same places under the same switches, which take the same doors; and which of them."""
        places = self.stubs.local[np.stack([src, dst], axis=1)]
        exits, entries = self._switches(first, second, src, dst)
        return distinct(np.hstack([places, exits, entries]))

    def choice(self, first: Pattern, second: Pattern, src: Ints, dst: Ints) -> Choice:
        """The doors among which pairs choose."""
        local = self.stubs.local
        distance = self.net.distance(*self._switches(first, second, src, dst))
        away, home = first.away[:, local[src]], second.home[:, local[dst]]
        return Choice(away, home, distance, second.enters, self.stubs.transit)

    def _switches(
        self, first: Pattern, second: Pattern, src: Ints, dst: Ints
    ) -> tuple[Ints, Ints]:
        """The switches behind all doors out of the first of each pair, and behind all doors into the second."""
        member = self.stubs.member
        return first.ends[0][member[src]], second.ends[1][member[dst]]

    def doors(
        self, first: Pattern, second: Pattern, src: Ints, dst: Ints, nth: int
    ) -> Doors:
        """The doors that each pair takes; of several that are as good, the ``nth``."""
        if not self.joined(first, second):
            return no_doors(len(src))
        one, which = self.alike(first, second, src, dst)
        choice = self.choice(first, second, src[one], dst[one])
        return choice.cheapest(nth).of(which)
