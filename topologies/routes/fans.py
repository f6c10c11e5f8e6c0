"""Fans: pairs of nodes between which several doors are as good, so that their bytes spread over all of these.

The paths between such a pair are those through each of its best doors out and doors in (a combination): how many there
are follows from the switches behind the doors, and what a link carries from the number of paths that lead over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from prestep.topologies.core.links import Bools, Floats, Ints, distinct, groups
from prestep.topologies.routes.doors import Gates
from prestep.topologies.routes.net import Net
from prestep.topologies.routes.pieces import Core, Piece
from prestep.topologies.routes.router import MAX_PATHS, STRIDE, chosen
from prestep.topologies.routes.stubs import Pattern


def repeated(paths: int) -> Floats:
    """What a link carries that 1, 2, ... of so many equal paths lead over, added up path by path."""
    return np.cumsum(np.full(paths, 1 / paths))


@dataclass(frozen=True, eq=False)
class Side:
    """One end of all pairs of a fan: the same place in hosts of one pattern.

    Attributes
    ----------
    pattern : Pattern
    place : int
        Of the node in its host.
    doors : list of int
        The best doors, in the order in which paths through them are counted.
    out : bool
        Whether paths leave by these doors.
    """

    pattern: Pattern
    place: int
    doors: list[int]
    out: bool

    @classmethod
    def of(cls, pattern: Pattern, place: int, doors: list[int], out: bool) -> Side:
        """A side whose doors are put in order."""
        side = cls(pattern, place, doors, out)
        ordered = sorted(doors, key=side._path)
        return cls(pattern, place, ordered, out)

    def _path(self, door: int) -> list[tuple[bool, int]]:
        """Rows from the node to a door, or from a door to the node, in the order of the path."""
        inner = [(False, row) for row in self.way(door)]
        return [*inner, (True, door)] if self.out else [(True, door), *inner[::-1]]

    def way(self, door: int) -> list[int]:
        """Inner rows between the node and a door."""
        return self.pattern.way(self.place, door, self.out)

    @cached_property
    def slim(self) -> list[bool]:
        """Of every door, whether the way through it is a single link wide somewhere."""
        width_of = self.pattern.width_of
        return [width_of(self.way(d), d, self.out) == 1 for d in self.doors]

    def switches(self, member: Ints) -> Ints:
        """The switch behind each door, of the hosts of each pair."""
        switches: Ints = self.pattern.ends[0 if self.out else 1][member][:, self.doors]
        return switches

    def piece(self, at: Ints, member: Ints, paths: Ints, share: Floats) -> Piece:
        """Rows in the hosts of some pairs, where so many `paths` of each pair lead through each door."""
        inner: Counter[int] = Counter()
        for door, count in zip(self.doors, paths.tolist(), strict=True):
            inner.update(dict.fromkeys(self.way(door), count))
        doors = self.pattern.out if self.out else self.pattern.into
        rows = [self.pattern.rows[member][:, list(inner)], doors[member][:, self.doors]]
        counts = np.array([*inner.values(), *paths.tolist()])
        used = counts > 0
        return Piece(at, np.concatenate(rows, axis=1)[:, used], share[counts[used] - 1])


@dataclass(frozen=True, eq=False)
class Fan:
    """Pairs that choose among the same doors.

    Attributes
    ----------
    at : array (pairs,)
        Positions of them.
    shift : array (pairs,)
        A number that the two ends make, which says what paths are taken of very many.
    members : array (pairs, 2)
        The places of their hosts in the patterns.
    sides : tuple of Side
    best : array (doors out, doors in)
        Which combinations are as good as any; in the order of the sides' doors.
    switches : array (pairs, combinations, 2)
        The switches behind both doors of every best combination.
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
    ) -> Fan:
        """The fan of pairs between two `ends`."""
        leave, enter = np.nonzero(best)
        first = sides[0].switches(members[:, 0])[:, leave]
        last = sides[1].switches(members[:, 1])[:, enter]
        switches = np.stack([first, last], axis=2)
        shift = ends[:, 0] * STRIDE + ends[:, 1]
        return cls(at, shift, members, sides, best, switches, _paths(net, switches))

    @property
    def clear(self) -> Bools:
        """Pairs of which it is clear which paths are taken: all of them, or those of some numbers.

        Paths are counted by doors out, then by paths between switches, then by doors in: where both are few. All carry
        as much where each is a single link wide somewhere.
        """
        one_net = (self.switches == self.switches[:, :1]).all(axis=(1, 2))
        few = self.paths.sum(axis=1) <= MAX_PATHS
        slim = np.logical_or.outer(self.sides[0].slim, self.sides[1].slim)
        clear: Bools = (few | one_net & self.best.all()) & slim[self.best].all()
        return clear

    def some(self, which: Ints) -> Fan:
        """The fan of some of the pairs."""
        columns = ("at", "shift", "members", "switches", "paths")
        return replace(self, **{key: getattr(self, key)[which] for key in columns})

    def pieces(self, net: Net) -> Iterator[Piece]:
        """What every pair uses, in its hosts and between switches."""
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
        """How many paths are taken through every combination of doors."""
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
            by_door = paths.sum(axis=1 - k)
            yield side.piece(self.at, self.members[:, k], by_door, share)
        first, which = distinct(self.switches.reshape(len(self.at), -1))
        between = None if numbers is None else numbers.between
        alike: dict[bytes, list[Core]] = {}
        for number, pairs in groups(which):
            rows, count = net.carried(self.switches[first[number]], between)
            core = Core(self.at[pairs], rows, share[count - 1])
            alike.setdefault(count.tobytes(), []).append(core)
        for cores in alike.values():
            yield _stacked(cores)


def fans_of(
    gates: Gates, hosts: tuple[Pattern, Pattern], src: Ints, dst: Ints, at: Ints
) -> Iterator[Fan]:
    """Pairs (positions `at`) between hosts of two patterns, by their doors: those of which all links are clear."""
    if not gates.joined(*hosts):
        return
    ends = np.stack([src, dst], axis=1)
    for pairs, places, as_good in _kinds(gates, hosts, ends):
        sides, best = _sides(hosts, places, as_good)
        members = gates.stubs.member[ends[pairs]]
        fan = Fan.of(gates.net, at[pairs], ends[pairs], members, sides, best)
        yield fan.some(np.flatnonzero(fan.clear))


def _kinds(
    gates: Gates, hosts: tuple[Pattern, Pattern], ends: Ints
) -> Iterator[tuple[Ints, Ints, Bools]]:
    """Pairs at the same places of their hosts, with the same best doors: their numbers, these places and doors."""
    src, dst = ends.T
    one, which = gates.alike(*hosts, src, dst)
    as_good, whole = gates.choice(*hosts, src[one], dst[one]).best()
    places = gates.stubs.local[ends[one]]
    first, kind = distinct(np.column_stack([places, as_good.reshape(len(one), -1)]))
    certain = np.flatnonzero(whole[which])
    for number, some in groups(kind[which[certain]]):
        example = first[number]
        yield certain[some], places[example], as_good[example]


def _sides(
    hosts: tuple[Pattern, Pattern], places: Ints, as_good: Bools
) -> tuple[tuple[Side, Side], Bools]:
    """Both ends of pairs by the doors that are in any best combination; and these combinations in their order."""
    leave, enter = as_good.any(axis=1), as_good.any(axis=0)
    out = Side.of(hosts[0], int(places[0]), np.flatnonzero(leave).tolist(), True)
    into = Side.of(hosts[1], int(places[1]), np.flatnonzero(enter).tolist(), False)
    return (out, into), as_good[np.ix_(out.doors, into.doors)]


class _Numbers(NamedTuple):
    """Paths by their numbers: of the door out, of the path between the switches, and of the door in."""

    leave: Ints
    between: Ints
    enter: Ints


def _stacked(cores: list[Core]) -> Piece:
    """Cores with as many rows, and the same shares, as one piece."""
    rows = np.stack([core.rows for core in cores])
    pairs = [core.pairs for core in cores]
    return Piece(
        np.concatenate(pairs),
        np.repeat(rows, [len(some) for some in pairs], axis=0),
        cores[0].share,
    )


def _paths(net: Net, switches: Ints) -> Ints:
    """How many paths there are between every two switches."""
    paths: Ints = net.counts(switches.reshape(-1, 2)).reshape(switches.shape[:2])
    return paths
