"""Fans: pairs of nodes between which several doors are as good, so that their bytes spread over all of these.

The paths between such a pair are those through each of its best doors out and doors in (a combination): how many there
are follows from the switches behind the doors, and what a link carries from the number of paths that lead over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topologies.core.grouping import distinct, groups
from topologies.core.links import Bools, Floats, Ints
from topologies.routes.net import Net
from topologies.routes.paths import MAX_PATHS, STRIDE, chosen
from topologies.routes.pattern import Pattern
from topologies.routes.pieces import Core, Piece


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
    ends : array (2, pairs)
        Their nodes.
    members : array (2, pairs)
        The places of their hosts in the patterns.
    sides : tuple of Side
    best : array (doors out, doors in)
        Which combinations are as good as any; in the order of the sides' doors.
    """

    net: Net
    at: Ints
    ends: Ints
    members: Ints
    sides: tuple[Side, Side]
    best: Bools

    @cached_property
    def switches(self) -> Ints:
        """The switches behind both doors of every best combination: array (pairs, combinations, 2)."""
        leave, enter = np.nonzero(self.best)
        first = self.sides[0].switches(self.members[0])[:, leave]
        last = self.sides[1].switches(self.members[1])[:, enter]
        return np.stack([first, last], axis=2)

    @cached_property
    def paths(self) -> Ints:
        """How many paths lead through every best combination: array (pairs, combinations)."""
        ends = self.switches.reshape(-1, 2)
        first, which = distinct(ends)
        count = np.array([self.net.count(s, t) for s, t in ends[first].tolist()])
        return count[which].reshape(self.switches.shape[:2])

    @property
    def slim(self) -> bool:
        """Whether every path is one link wide somewhere, so that all carry as much."""
        slim = np.logical_or.outer(self.sides[0].slim, self.sides[1].slim)
        return bool(slim[self.best].all())

    @property
    def clear(self) -> Bools:
        """Pairs of which it is clear which paths are taken: all of them, or those of some numbers.

        Paths are counted by doors out, then by paths between switches, then by doors in: where both are few.
        """
        one_net = (self.switches == self.switches[:, :1]).all(axis=(1, 2))
        clear: Bools = (self.paths.sum(axis=1) <= MAX_PATHS) | one_net & self.best.all()
        return clear & self.slim

    def of(self, which: Ints) -> Fan:
        """The fan of some of the pairs."""
        at, ends, members = self.at[which], self.ends[:, which], self.members[:, which]
        return Fan(self.net, at, ends, members, self.sides, self.best)

    def links(self) -> Iterator[Piece]:
        """What every pair uses, in its hosts and between switches."""
        total = self.paths.sum(axis=1)
        step = np.maximum(1, total // MAX_PATHS)
        shift = (self.ends[0] * STRIDE + self.ends[1]) % step
        alike = np.column_stack(
            [total, np.where(total > MAX_PATHS, shift, -1), self.paths]
        )
        first, which = distinct(alike)
        for number, pairs in groups(which):
            part = self.of(pairs)
            paths, shift_of = int(total[first[number]]), int(shift[first[number]])
            yield from part._taking(_Taken.of(part, paths, shift_of))

    def _taking(self, taken: _Taken) -> Iterator[Piece]:
        """The links of pairs that all take paths of the same numbers."""
        share = repeated(taken.paths.sum())
        by_door = np.zeros(self.best.shape, dtype=np.int64)
        by_door[self.best] = taken.paths
        for side in (0, 1):
            paths = by_door.sum(axis=1 - side)
            yield self.sides[side].piece(self.at, self.members[side], paths, share)
        pairs = len(self.at)
        first, which = distinct(self.switches.reshape(pairs, -1))
        for number, some in groups(which):
            rows, counts = taken.between(
                self.net, self.switches[first[number]].tolist()
            )
            if len(rows):
                yield Core(self.at[some], rows, share[counts - 1]).piece()


@dataclass(frozen=True, eq=False)
class _Taken:
    """Which paths are taken.

    Attributes
    ----------
    paths : array (combinations,)
        How many through every combination.
    numbers : array or None
        Of the paths between the switches, one for each path that is taken; None: all of each combination.
    """

    paths: Ints
    numbers: Ints | None

    @classmethod
    def of(cls, fan: Fan, total: int, shift: int) -> _Taken:
        """The paths that pairs of a fan take, of `total`."""
        if total <= MAX_PATHS:
            return cls(fan.paths[0], None)
        doors_in = fan.best.shape[1]
        between = int(fan.paths[0, 0])
        outer, enter = np.divmod(np.array(chosen(total, shift)), doors_in)
        leave, numbers = np.divmod(outer, between)
        paths = np.bincount(leave * doors_in + enter, minlength=fan.best.size)
        return cls(paths, numbers)

    def between(self, net: Net, switches: list[list[int]]) -> tuple[Ints, Ints]:
        """Rows between the switches of every combination, and how many paths lead over each."""
        if self.numbers is None:
            lines = [net.lines(s, t).ravel() for s, t in switches]
        else:
            s, t = switches[0]
            lines = [net.lines(s, t, self.numbers).ravel()]
        return np.unique(np.concatenate(lines), return_counts=True)
