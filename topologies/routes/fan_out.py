"""Fan-out: pairs of nodes between which several ports are as good, so that bytes spread over all of them.

Each combination of a best port out and a best port in has as many paths as there are between the switches behind the
two. What a link carries follows from the number of paths that use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from prestep.topologies.core.links import Bools, Floats, Ints, distinct, groups
from prestep.topologies.routes.net import Net
from prestep.topologies.routes.pieces import Piece
from prestep.topologies.routes.ports import HostPorts
from prestep.topologies.routes.router import MAX_PATHS, STRIDE, chosen
from prestep.topologies.routes.stubs import Pattern


def repeated(paths: int) -> Floats:
    """Returns the share of the bytes on a link that 1, 2, ... of so many equal paths use."""
    return np.cumsum(np.full(paths, 1 / paths))


@dataclass(frozen=True, eq=False)
class Side:
    """One end of all pairs of a fan-out: the same place in hosts of one pattern.

    Attributes
    ----------
    pattern : Pattern
    place : int
        Of the node in its host.
    ports : list of int
        The best ports, in the order in which paths through them are counted.
    out : bool
        Whether paths leave by these ports.
    """

    pattern: Pattern
    place: int
    ports: list[int]
    out: bool

    @classmethod
    def of(cls, pattern: Pattern, place: int, ports: list[int], out: bool) -> Side:
        """Returns a side with its ports in order."""
        side = cls(pattern, place, ports, out)
        ordered = sorted(ports, key=side._path)
        return cls(pattern, place, ordered, out)

    def _path(self, port: int) -> list[tuple[bool, int]]:
        """Rows on the path between the node and a port, in the order in which bytes pass them."""
        inner = [(False, row) for row in self.way(port)]
        return [*inner, (True, port)] if self.out else [(True, port), *inner[::-1]]

    def way(self, port: int) -> list[int]:
        """Inner rows between the node and a port."""
        return self.pattern.way(self.place, port, self.out)

    @cached_property
    def slim(self) -> list[bool]:
        """Of every port: whether a part of the path through it is a single link wide."""
        width_of = self.pattern.width_of
        return [width_of(self.way(d), d, self.out) == 1 for d in self.ports]

    def switches(self, member: Ints) -> Ints:
        """Returns the switch behind each port of the hosts of each pair."""
        switches: Ints = self.pattern.ends[0 if self.out else 1][member][:, self.ports]
        return switches

    def piece(self, at: Ints, member: Ints, paths: Ints, share: Floats) -> Piece:
        """Returns the rows in the hosts of some pairs; `paths` counts those of each pair through each port."""
        inner: Counter[int] = Counter()
        for port, count in zip(self.ports, paths.tolist(), strict=True):
            inner.update(dict.fromkeys(self.way(port), count))
        ports = self.pattern.out if self.out else self.pattern.into
        rows = [self.pattern.rows[member][:, list(inner)], ports[member][:, self.ports]]
        counts = np.array([*inner.values(), *paths.tolist()])
        used = counts > 0
        return Piece(at, np.concatenate(rows, axis=1)[:, used], share[counts[used] - 1])


@dataclass(frozen=True, eq=False)
class FanOut:
    """Pairs that choose among the same ports.

    Attributes
    ----------
    at : array (pairs,)
        Positions of them.
    shift : array (pairs,)
        A number derived from the two ends that selects paths where there are too many to use all.
    members : array (pairs, 2)
        The places of their hosts in the patterns.
    sides : tuple of Side
    best : array (ports out, ports in)
        Which combinations are as good as any; in the order of the sides' ports.
    switches : array (pairs, combinations, 2)
        The switches behind both ports of every best combination.
    paths : array (pairs, combinations)
        How many paths lead through every best combination.
    """

    at: Ints
    shift: Ints
    members: Ints
    sides: tuple[Side, Side]
    best: Bools
    switches: Ints
    paths: Ints

    @classmethod
    def of(
        cls,
        net: Net,
        at: Ints,
        ends: Ints,
        members: Ints,
        sides: tuple[Side, Side],
        best: Bools,
    ) -> FanOut:
        """Returns the fan-out of pairs between two `ends`."""
        leave, enter = np.nonzero(best)
        first = sides[0].switches(members[:, 0])[:, leave]
        last = sides[1].switches(members[:, 1])[:, enter]
        switches = np.stack([first, last], axis=2)
        shift = ends[:, 0] * STRIDE + ends[:, 1]
        return cls(at, shift, members, sides, best, switches, _paths(net, switches))

    @property
    def clear(self) -> Bools:
        """Pairs whose paths are known without enumerating them: all of them are taken, or those of some numbers.

        Paths are counted by ports out, then by paths between switches, then by ports in: where both are few. All carry
        as much where each is a single link wide somewhere.
        """
        one_net = (self.switches == self.switches[:, :1]).all(axis=(1, 2))
        few = self.paths.sum(axis=1) <= MAX_PATHS
        slim = np.logical_or.outer(self.sides[0].slim, self.sides[1].slim)
        clear: Bools = (few | one_net & self.best.all()) & slim[self.best].all()
        return clear

    def some(self, which: Ints) -> FanOut:
        """Returns the fan-out of some of the pairs."""
        columns = ("at", "shift", "members", "switches", "paths")
        return replace(self, **{key: getattr(self, key)[which] for key in columns})

    def pieces(self, net: Net) -> Iterator[Piece]:
        """Yields the links that every pair uses, in its hosts and between switches."""
        total = self.paths.sum(axis=1)
        step = total // MAX_PATHS
        shift = np.where(total > MAX_PATHS, self.shift % np.maximum(step, 1), 0)
        first, which = distinct(np.column_stack([shift, self.paths]))
        for number, pairs in groups(which):
            part = self.some(pairs)
            numbers = part._numbers(int(shift[first[number]]))
            yield from part._taking(net, numbers)

    def _numbers(self, shift: int) -> _Numbers | None:
        """The paths that pairs take which have equally many; None: all."""
        total = int(self.paths[0].sum())
        if total <= MAX_PATHS:
            return None
        before, enter = np.divmod(np.array(chosen(total, shift)), self.best.shape[1])
        leave, between = np.divmod(before, int(self.paths[0, 0]))
        return _Numbers(leave, between, enter)

    def _taken(self, numbers: _Numbers | None) -> Ints:
        """How many paths are taken through every combination of ports."""
        paths = np.zeros(self.best.shape, dtype=np.int64)
        if numbers is None:
            paths[self.best] = self.paths[0]
        else:
            np.add.at(paths, (numbers.leave, numbers.enter), 1)
        return paths

    def _taking(self, net: Net, numbers: _Numbers | None) -> Iterator[Piece]:
        """The links of pairs that take paths of the same numbers."""
        paths = self._taken(numbers)
        share = repeated(int(paths.sum()))
        for k, side in enumerate(self.sides):
            by_port = paths.sum(axis=1 - k)
            yield side.piece(self.at, self.members[:, k], by_port, share)
        first, which = distinct(self.switches.reshape(len(self.at), -1))
        between = None if numbers is None else numbers.between
        alike: dict[bytes, tuple[Floats, list[Ints], list[Ints]]] = {}
        for number, pairs in groups(which):
            rows, count = net.carried(self.switches[first[number]], between)
            key = count.tobytes()
            if key not in alike:
                alike[key] = share[count - 1], [], []
            alike[key][1].append(rows)
            alike[key][2].append(pairs)
        # Pairs between other switches whose paths carry the same shares are one piece.
        for shares, lines, some in alike.values():
            each = np.repeat(np.stack(lines), list(map(len, some)), axis=0)
            yield Piece(self.at[np.concatenate(some)], each, shares)


def fan_outs(
    host_ports: HostPorts,
    hosts: tuple[Pattern, Pattern],
    src: Ints,
    dst: Ints,
    at: Ints,
) -> Iterator[FanOut]:
    """Yields pairs (positions `at`) between hosts of two patterns by their ports, where these are clear."""
    if not host_ports.joined(*hosts):
        return
    ends = np.stack([src, dst], axis=1)
    for pairs, places, as_good in _kinds(host_ports, hosts, ends):
        sides, best = _sides(hosts, places, as_good)
        members = host_ports.stubs.member[ends[pairs]]
        fan = FanOut.of(host_ports.net, at[pairs], ends[pairs], members, sides, best)
        yield fan.some(np.flatnonzero(fan.clear))


def _kinds(
    host_ports: HostPorts, hosts: tuple[Pattern, Pattern], ends: Ints
) -> Iterator[tuple[Ints, Ints, Bools]]:
    """Pairs at the same places of their hosts, with the same best ports: their numbers, these places and ports."""
    src, dst = ends.T
    one, which = host_ports.alike(*hosts, src, dst)
    as_good, whole = host_ports.choice(*hosts, src[one], dst[one]).best()
    places = host_ports.stubs.local[ends[one]]
    first, kind = distinct(np.column_stack([places, as_good.reshape(len(one), -1)]))
    certain = np.flatnonzero(whole[which])
    for number, some in groups(kind[which[certain]]):
        example = first[number]
        yield certain[some], places[example], as_good[example]


def _sides(
    hosts: tuple[Pattern, Pattern], places: Ints, as_good: Bools
) -> tuple[tuple[Side, Side], Bools]:
    """Both ends of pairs by the ports that are in any best combination; and these combinations in their order."""
    leave, enter = as_good.any(axis=1), as_good.any(axis=0)
    out = Side.of(hosts[0], int(places[0]), np.flatnonzero(leave).tolist(), True)
    into = Side.of(hosts[1], int(places[1]), np.flatnonzero(enter).tolist(), False)
    return (out, into), as_good[np.ix_(out.ports, into.ports)]


class _Numbers(NamedTuple):
    """Paths by their numbers: of the port out, of the path between the switches, and of the port in."""

    leave: Ints
    between: Ints
    enter: Ints


def _paths(net: Net, switches: Ints) -> Ints:
    """How many paths there are between every two switches."""
    paths: Ints = net.counts(switches.reshape(-1, 2)).reshape(switches.shape[:2])
    return paths
