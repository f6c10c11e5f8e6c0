"""Fan-out: pairs of nodes between which several ports are as good, so that bytes spread over all of them.

Each combination of a best port out and a best port in has as many paths as there are between the switches behind the
two. What a link carries follows from the number of paths that use it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
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
    """One end of a pair: a place in the hosts of a pattern, and the best ports of a node there.

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
        """Returns a side with its ports in order, one for all who ask for it."""
        key = place, out, *ports
        if key not in pattern.sides:
            ordered = sorted(ports, key=cls(pattern, place, ports, out)._path)
            pattern.sides[key] = cls(pattern, place, ordered, out)
        side: Side = pattern.sides[key]
        return side

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

    @cached_property
    def inner(self) -> list[int]:
        """Inner rows on the way to any of the ports."""
        return list(dict.fromkeys(row for port in self.ports for row in self.way(port)))

    @cached_property
    def uses(self) -> Ints:
        """Of every port in a line: 1 for each of the inner rows on the way to it."""
        lines = [[row in self.way(port) for row in self.inner] for port in self.ports]
        return np.array(lines, dtype=np.int64).reshape(len(self.ports), -1)

    @cached_property
    def shape(self) -> Hashable:
        """Equal for sides whose ports carry the same shares."""
        return self.uses.shape, self.uses.tobytes(), tuple(self.slim)


@dataclass(frozen=True, eq=False)
class Ends:
    """One end of all pairs of a fan-out: sides of one shape.

    Attributes
    ----------
    like : Side
        One of the sides.
    member : array (pairs,)
        The place of the host of each pair in the pattern.
    inner, ports : array (pairs, rows), array (pairs, ports)
        Inner rows and ports of each pair's side.
    """

    like: Side
    member: Ints
    inner: Ints
    ports: Ints

    def some(self, which: Ints) -> Ends:
        """Returns the ends of some of the pairs."""
        columns = (self.member, self.inner, self.ports)
        return Ends(self.like, *(column[which] for column in columns))

    def switches(self) -> Ints:
        """Returns the switch behind each port of each pair."""
        ends = self.like.pattern.ends[0 if self.like.out else 1]
        switches: Ints = ends[self.member[:, None], self.ports]
        return switches

    def piece(self, at: Ints, paths: Ints, share: Floats) -> Piece:
        """Returns the rows in the hosts of all pairs; `paths` counts those of each pair through each port."""
        pattern, hosts = self.like.pattern, self.member[:, None]
        doors = pattern.out if self.like.out else pattern.into
        rows = [pattern.rows[hosts, self.inner], doors[hosts, self.ports]]
        counts = np.concatenate([paths @ self.like.uses, paths])
        used = counts > 0
        return Piece(at, np.concatenate(rows, axis=1)[:, used], share[counts[used] - 1])


@dataclass(frozen=True, eq=False)
class FanOut:
    """Pairs that choose among ports of the same shapes.

    Attributes
    ----------
    at : array (pairs,)
        Positions of them.
    shift : array (pairs,)
        A number derived from the two ends that selects paths where there are too many to use all.
    ends : tuple of Ends
    best : array (ports out, ports in)
        Which combinations are as good as any; in the order of the sides' ports.
    switches : array (pairs, combinations, 2)
        The switches behind both ports of every best combination.
    paths : array (pairs, combinations)
        How many paths lead through every best combination.
    """

    at: Ints
    shift: Ints
    ends: tuple[Ends, Ends]
    best: Bools
    switches: Ints
    paths: Ints

    @classmethod
    def of(
        cls, net: Net, at: Ints, nodes: Ints, ends: tuple[Ends, Ends], best: Bools
    ) -> FanOut:
        """Returns the fan-out of pairs of `nodes`."""
        leave, enter = np.nonzero(best)
        first, last = (end.switches() for end in ends)
        switches = np.stack([first[:, leave], last[:, enter]], axis=2)
        shift = nodes[:, 0] * STRIDE + nodes[:, 1]
        paths = net.counts(switches.reshape(-1, 2)).reshape(switches.shape[:2])
        return cls(at, shift, ends, best, switches, paths)

    @property
    def clear(self) -> Bools:
        """Pairs whose paths are known without enumerating them: all of them are taken, or those of some numbers.

        Paths are counted by ports out, then by paths between switches, then by ports in: where both are few. All carry
        as much where each is a single link wide somewhere.
        """
        one_net = (self.switches == self.switches[:, :1]).all(axis=(1, 2))
        few = self.paths.sum(axis=1) <= MAX_PATHS
        slim = np.logical_or.outer(*(end.like.slim for end in self.ends))
        clear: Bools = (few | one_net & self.best.all()) & slim[self.best].all()
        return clear

    def some(self, which: Ints) -> FanOut:
        """Returns the fan-out of some of the pairs."""
        columns = ("at", "shift", "switches", "paths")
        some = {key: getattr(self, key)[which] for key in columns}
        first, last = self.ends
        return replace(self, ends=(first.some(which), last.some(which)), **some)

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
        for k, end in enumerate(self.ends):
            yield end.piece(self.at, paths.sum(axis=1 - k), share)
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
    nodes = np.stack([src, dst], axis=1)
    for pairs, ends, best in _kinds(host_ports, hosts, src, dst):
        fan = FanOut.of(host_ports.net, at[pairs], nodes[pairs], ends, best)
        yield fan.some(np.flatnonzero(fan.clear))


def _kinds(
    host_ports: HostPorts, hosts: tuple[Pattern, Pattern], src: Ints, dst: Ints
) -> Iterator[tuple[Ints, tuple[Ends, Ends], Bools]]:
    """Pairs whose sides have the same shapes and the same best ports: their numbers, ends and best combinations."""
    local, member = host_ports.stubs.local, host_ports.stubs.member
    one, which = host_ports.alike(*hosts, src, dst)
    choice = host_ports.choice(*hosts, src[one], dst[one])
    as_good, whole = choice.best()
    leave, enter = np.any(as_good, axis=2), np.any(as_good, axis=1)
    out = _Sides(hosts[0], local[src[one]], choice.out.ports, leave, True)
    into = _Sides(hosts[1], local[dst[one]], choice.back.ports, enter, False)
    kinds = np.full(len(one), -1)
    bests: list[Bools] = []
    certain = np.flatnonzero(whole)
    for _, which_of in groups((out.shape * len(one) + into.shape)[certain]):
        some = certain[which_of]
        # The combinations in the order in which paths through the ports are counted.
        order = out.order(some)[:, :, None], into.order(some)[:, None, :]
        best = as_good[(some[:, None, None], *order)]
        first, same = distinct(best.reshape(len(some), -1).astype(np.int64))
        kinds[some] = same + len(bests)
        bests += [best[at] for at in first.tolist()]
    for kind, pairs in groups(kinds[which]):
        if kind >= 0:
            ends = (
                out.ends(which[pairs], member[src[pairs]]),
                into.ends(which[pairs], member[dst[pairs]]),
            )
            yield pairs, ends, bests[kind]


class _Sides:
    """One end of some pairs by the ports that are in any best combination.

    Attributes
    ----------
    sides : list of Side
    side, shape : array (pairs,)
        Number of the side of each pair, and of its shape.
    """

    def __init__(
        self, pattern: Pattern, place: Ints, ports: Ints, taken: Bools, out: bool
    ) -> None:
        first, self.side = distinct(
            np.column_stack([place, np.where(taken, ports, -1)])
        )
        self._ports = ports
        self.sides = [
            Side.of(pattern, int(place[at]), ports[at][taken[at]].tolist(), out)
            for at in first.tolist()
        ]
        numbers: dict[Hashable, int] = {}
        shapes = [numbers.setdefault(side.shape, len(numbers)) for side in self.sides]
        self.shape = np.array(shapes, dtype=np.int64)[self.side]

    def order(self, pairs: Ints) -> Ints:
        """Where each port of the sides of some pairs, which have one shape, stands among the ports they chose from."""
        ports = self._table(pairs, "ports")
        order: Ints = (self._ports[pairs][:, None, :] == ports[:, :, None]).argmax(
            axis=2
        )
        return order

    def ends(self, pairs: Ints, member: Ints) -> Ends:
        """The ends of some pairs, which have one shape, in these hosts."""
        like = self.sides[self.side[pairs[0]]]
        return Ends(
            like, member, self._table(pairs, "inner"), self._table(pairs, "ports")
        )

    def _table(self, pairs: Ints, name: str) -> Ints:
        """Rows or ports of the side of each of some pairs of one shape."""
        numbers, which = np.unique(self.side[pairs], return_inverse=True)
        lines = [getattr(self.sides[number], name) for number in numbers.tolist()]
        return np.array(lines, dtype=np.int64)[which]


class _Numbers(NamedTuple):
    """Paths by their numbers: of the port out, of the path between the switches, and of the port in."""

    leave: Ints
    between: Ints
    enter: Ints
