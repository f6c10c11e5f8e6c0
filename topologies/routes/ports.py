"""Ports: the links by which routes leave one host and enter another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from prestep.topologies.core.links import Bools, Ints, distinct
from prestep.topologies.routes.net import Net
from prestep.topologies.routes.stubs import FAR, Pattern, Stubs

_COST = 1 << 10  # more CPUs than any path passes
_NEVER = FAR**3  # more than any way costs


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
class _Side:
    """The ports at one end of each pair that a best path may take.

    Of ports that lead to one switch only the cheapest count: racks have 72 ports, of which a GPU considers four.

    Attributes
    ----------
    ports : array (pairs, few)
        Numbers of the ports; those that may be taken come first, ascending.
    cost : array (pairs, few)
        Hops and CPUs of the best way to each, as one number.
    ways : array (pairs, few)
        Number of these ways.
    switches : array (pairs, few)
        The switch behind each port.
    nearest : array (pairs,)
        Hops to the nearest of all ports.
    """

    ports: Ints
    cost: Ints
    ways: Ints
    switches: Ints
    nearest: Ints

    @classmethod
    def of(
        cls, table: Ints, first: Ints, entered: Ints | int, which: Ints, switches: Ints
    ) -> _Side:
        """Returns the side of each pair, whose ports have these switches behind them.

        Parameters
        ----------
        table, first
            Hops, CPUs and ways to all ports, and the first port that leads to the switch of each, of a few nodes.
        entered
            CPUs behind each port.
        which
            The node of every pair.
        """
        hops, cpus, ways = table
        cpus = cpus + entered
        cost = hops * _COST + cpus
        # Ways without a CPU count beside the cheapest: where only some paths pass one, the router chooses.
        kept = _cheapest(cost, first) | _cheapest(
            np.where((cpus == 0) & (hops < FAR), cost, _NEVER), first
        )
        few = int(kept.sum(axis=1).max(initial=1))
        ports = np.argsort(~kept, axis=1, kind="stable")[:, :few]
        few_cost, few_ways = (
            np.take_along_axis(column, ports, axis=1)[which] for column in (cost, ways)
        )
        ports = ports[which]
        behind = np.take_along_axis(switches, ports, axis=1)
        return cls(ports, few_cost, few_ways, behind, hops.min(axis=1)[which])


def _cheapest(cost: Ints, switches: Ints) -> Bools:
    """Of every port in each line: whether no other one to the same switch costs less."""
    order = np.lexsort((cost, switches))
    lines = np.arange(len(cost))[:, None]
    sorted_cost, sorted_to = cost[lines, order], switches[lines, order]
    begins = np.ones(cost.shape, dtype=bool)
    begins[:, 1:] = sorted_to[:, 1:] != sorted_to[:, :-1]
    first = np.maximum.accumulate(np.where(begins, np.arange(cost.shape[1]), 0), axis=1)
    cheapest = np.empty(cost.shape, dtype=bool)
    cheapest[lines, order] = sorted_cost == sorted_cost[lines, first]
    return cheapest & (cost < _NEVER)


@dataclass(frozen=True, eq=False)
class Choice:
    """The ports among which pairs choose.

    Attributes
    ----------
    out, back : _Side
        Ports out of the first host of each pair, and into the second.
    distance : array (pairs, ports out, ports in)
        Hops between the switches behind these ports.
    transit : int
        Fewest hops through a host from one switch to another.
    """

    out: _Side
    back: _Side
    distance: Ints
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
        leave, enter = np.divmod(place, self.back.ports.shape[1])
        single = self.out.ways[pairs, leave] == 1
        single &= self.back.ways[pairs, enter] == 1
        single &= self._direct(least) & _plain(cost, least)
        ports = self.out.ports[pairs, leave], self.back.ports[pairs, enter]
        return Ports(*ports, single, best)

    def best(self) -> tuple[Bools, Bools]:
        """Returns which combinations of ports are as good as any, and whether all best paths go through these."""
        cost = self._cost()
        least = cost.min(axis=1)
        as_good = cost == least[:, None]
        lone = (self.out.ways[:, :, None] == 1) & (self.back.ways[:, None, :] == 1)
        whole = (lone.reshape(cost.shape) | ~as_good).all(axis=1)
        return as_good.reshape(lone.shape), whole & self._direct(least) & _plain(
            cost, least
        )

    @property
    def fewest(self) -> Ints:
        """A lower bound on the hops of each pair, directly or through a third host."""
        direct = self._cost().min(axis=1) // _COST
        fewest: Ints = np.minimum(direct, self._around)
        return fewest

    @property
    def _around(self) -> Ints:
        """Fewest hops of each pair through a third host."""
        return self.out.nearest + self.back.nearest + 2 + self.transit

    def _cost(self) -> Ints:
        """Hops and CPUs of each pair through each combination of ports, as one number."""
        between = (self.distance + 2) * _COST
        cost: Ints = self.out.cost[:, :, None] + self.back.cost[:, None, :] + between
        return cost.reshape(len(cost), -1)

    def _direct(self, least: Ints) -> Bools:
        """Whether no path through a third host is as short."""
        hops = least // _COST
        direct: Bools = (hops < self._around) & (hops < FAR)
        return direct


def _plain(cost: Ints, least: Ints) -> Bools:
    """Whether CPUs do not matter: the best path passes none, or every path passes some.

    Where only some paths pass a CPU, the router chooses: it may prefer a longer one.
    """
    some = (cost // _COST >= FAR) | (cost % _COST > 0)
    plain: Bools = (least % _COST == 0) | some.all(axis=1)
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
        stubs = self.stubs
        exits = first.under[0][stubs.member[src]]
        entries = second.under[1][stubs.member[dst]]
        return distinct(
            np.stack([stubs.local[src], stubs.local[dst], exits, entries], axis=1)
        )

    def choice(self, first: Pattern, second: Pattern, src: Ints, dst: Ints) -> Choice:
        """Returns the ports among which pairs choose."""
        out, back = self._side(first, src, True), self._side(second, dst, False)
        distance = self.net.distance(out.switches, back.switches)
        return Choice(out, back, distance, self.stubs.transit)

    def _side(self, pattern: Pattern, nodes: Ints, out: bool) -> _Side:
        """Returns the side of each node; nodes in one place of hosts of one shape are looked at once."""
        local, member = self.stubs.local[nodes], self.stubs.member[nodes]
        end, table = (0, pattern.away) if out else (1, pattern.home)
        shapes = pattern.shapes[end]
        shape = shapes.of_host[member]
        some, which = distinct(np.stack([local, shape], axis=1))
        entered = 0 if out else pattern.enters
        first, switches = shapes.first[shape[some]], pattern.ends[end][member]
        return _Side.of(table[:, local[some]], first, entered, which, switches)

    def ports(
        self, first: Pattern, second: Pattern, src: Ints, dst: Ints, nth: int = 0
    ) -> Ports:
        """Returns the ports that each pair takes; the ``nth`` of several that are as good."""
        if not self.joined(first, second):
            return no_ports(len(src))
        one, which = self.alike(first, second, src, dst)
        choice = self.choice(first, second, src[one], dst[one])
        return choice.cheapest(nth).of(which)
