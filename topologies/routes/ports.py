"""Ports: the links by which routes leave one host and enter another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from prestep.topologies.core.links import Bools, Ints, distinct
from prestep.topologies.routes.net import Net
from prestep.topologies.routes.stubs import FAR, Pattern, Stubs

_BITS = 10
_COST = 1 << _BITS  # more CPUs than any path passes


class Ports(NamedTuple):
    """The ports that each pair of nodes takes.

    Attributes
    ----------
    leave, enter : array (pairs,)
        Number of the port out of the one host, and of the port into the other.
    single : array (pairs,)
        Whether there is exactly one path to the port and from it.
    best : array (pairs,)
        How many combinations of ports are as good as this one.
    """

    leave: Ints
    enter: Ints
    single: Bools
    best: Ints

    def of(self, which: Ints) -> Ports:
        """Returns the ports of some of the pairs."""
        leave, enter, single, best = self
        return Ports(leave[which], enter[which], single[which], best[which])


def no_ports(pairs: int) -> Ports:
    """Returns the ports of pairs whose hosts the network does not join, or not through ports alone: none."""
    zeros = np.zeros(pairs, dtype=np.int64)
    return Ports(zeros, zeros, np.zeros(pairs, dtype=bool), zeros)


@dataclass(frozen=True, eq=False)
class Choice:
    """The ports among which pairs choose.

    Attributes
    ----------
    away, home : array (3, pairs, ports)
        Hops, CPUs and number of best ways from the first node to each port, and from each port to the second.
    distance : array (pairs, ports out, ports in)
        Hops between the switches behind the ports.
    enters : array (ports in)
        1 where a port leads into a CPU.
    transit : int
        Fewest hops through a host from one switch to another.
    """

    away: Ints
    home: Ints
    distance: Ints
    enters: Ints
    transit: int

    def cheapest(self, nth: int) -> Ports:
        """Returns the ports with the fewest hops, then the fewest CPUs; the ``nth`` of several that are as good."""
        cost = self._cost()
        pairs = np.arange(len(cost))
        least = cost.min(axis=1)
        as_good = cost == least[:, None]
        best = as_good.sum(axis=1)
        if nth:
            wanted = np.minimum(nth + 1, best)[:, None]
            as_good = np.cumsum(as_good, axis=1) == wanted
        place = np.argmax(as_good, axis=1)
        leave, enter = np.divmod(place, self.home.shape[2])
        single = self.away[2][pairs, leave] == 1
        single &= self.home[2][pairs, enter] == 1
        single &= self._direct(least) & _plain(cost, least)
        return Ports(leave, enter, single, best)

    def best(self) -> tuple[Bools, Bools]:
        """Returns which combinations of ports are as good as any, and whether all best paths go through these."""
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
        """A lower bound on the hops of each pair, directly or through a third host."""
        direct = (self._cost().min(axis=1)) // _COST
        to_port, from_port = self.away[0].min(axis=1), self.home[0].min(axis=1)
        fewest: Ints = np.minimum(direct, to_port + from_port + 2 + self.transit)
        return fewest

    def _cost(self) -> Ints:
        """Hops and CPUs of each pair through each combination of ports, as one number."""
        out = (self.away[0] + 2) * _COST + self.away[1]
        back = self.home[0] * _COST + self.home[1] + self.enters
        cost: Ints = out[:, :, None] + back[:, None, :]
        # In place: racks have 72 ports each, so a pair has thousands of combinations.
        cost += self.distance * _COST
        return cost.reshape(len(cost), -1)

    def _direct(self, least: Ints) -> Bools:
        """Whether no path through a third host is as short."""
        hops = least // _COST
        to_port = self.away[0].min(axis=1)
        from_port = self.home[0].min(axis=1)
        around = to_port + from_port + 2 + self.transit
        direct: Bools = (hops < around) & (hops < FAR)
        return direct


def _plain(cost: Ints, least: Ints) -> Bools:
    """Whether CPUs do not matter: the best path passes none, or every path passes some.

    Where only some paths pass a CPU, the router chooses: it may prefer a longer one.
    """
    plain: Bools = least % _COST == 0
    others = np.flatnonzero(~plain)
    some = cost[others]
    # Shifts, as racks make millions of combinations.
    plain[others] = ((some >> _BITS >= FAR) | (some & _COST - 1 > 0)).all(axis=1)
    return plain


@dataclass(frozen=True, eq=False)
class HostPorts:
    """The ports of all hosts, and the switches that they lead to."""

    stubs: Stubs
    net: Net

    def joined(self, first: Pattern, second: Pattern) -> bool:
        """Whether routes lead from hosts of one pattern to those of another through ports alone."""
        return bool(first.ports[0] and second.ports[1] and self.stubs.transit)

    def alike(
        self, first: Pattern, second: Pattern, src: Ints, dst: Ints
    ) -> tuple[Ints, Ints]:
        """Groups pairs in the same places under the same switches, which take the same ports: examples and groups."""
        places = self.stubs.local[np.stack([src, dst], axis=1)]
        exits, entries = self._switches(first, second, src, dst)
        return distinct(np.hstack([places, exits, entries]))

    def choice(self, first: Pattern, second: Pattern, src: Ints, dst: Ints) -> Choice:
        """Returns the ports among which pairs choose."""
        local = self.stubs.local
        distance = self.net.distance(*self._switches(first, second, src, dst))
        away, home = first.away[:, local[src]], second.home[:, local[dst]]
        return Choice(away, home, distance, second.enters, self.stubs.transit)

    def _switches(
        self, first: Pattern, second: Pattern, src: Ints, dst: Ints
    ) -> tuple[Ints, Ints]:
        """Switches that the ports out of the first of each pair lead to, and those that lead into the second."""
        member = self.stubs.member
        return first.ends[0][member[src]], second.ends[1][member[dst]]

    def ports(
        self, first: Pattern, second: Pattern, src: Ints, dst: Ints, nth: int
    ) -> Ports:
        """Returns the ports that each pair takes; the ``nth`` of several that are as good."""
        if not self.joined(first, second):
            return no_ports(len(src))
        one, which = self.alike(first, second, src, dst)
        choice = self.choice(first, second, src[one], dst[one])
        return choice.cheapest(nth).of(which)
