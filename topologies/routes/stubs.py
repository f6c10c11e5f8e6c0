"""Hosts as copies of few patterns, and as dead ends of the network: what `prestep.topologies.routes.batch` knows of
a cluster.

Hosts whose nodes and inner links are alike share a `Pattern`; a way inside one of them is the same way in all. A host
is a dead end where no shortest path passes through it, so that a way between hosts is one way out, one way through the
switches, and one way in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prestep.topologies.core.kinds import NETWORK, rank_of
from prestep.topologies.core.links import Bools, Ints, Links, Nodes
from prestep.topologies.routes.pattern import FAR, Pattern

MOST_DOORS = 128  # links out of a host, beyond which it is a network of its own


@dataclass(frozen=True, eq=False)
class Stubs:
    """All hosts of a cluster by pattern.

    Attributes
    ----------
    patterns : list of Pattern
    pattern, member, local : array per node
        Its pattern (-1: outside, or its host is no dead end), its host's place in it, and its own place in the host.
    outside : array
        Positions of the nodes outside every host.
    transit : int
        Fewest hops through a host from one switch to another.
    """

    patterns: list[Pattern]
    pattern: Ints
    member: Ints
    local: Ints
    outside: Ints
    transit: int


def find(nodes: Nodes, links: Links, src: Ints, dst: Ints) -> Stubs:
    """Patterns of all hosts; `src` and `dst` are the rows' ends as positions in `nodes`."""
    survey = _Survey.of(nodes, links, src, dst)
    patterns: dict[bytes, Pattern] = {}
    odd = survey.odd_hosts()
    for number in range(survey.hosts):
        if number in odd:
            continue
        if survey.doors(number) > MOST_DOORS:
            odd.add(number)
            continue
        mark = survey.mark(number)
        if mark not in patterns:
            patterns[mark] = survey.pattern(number)
        patterns[mark].hosts.append(number)
    return survey.stubs(list(patterns.values()), bool(odd))


@dataclass(frozen=True, eq=False)
class _Survey:
    """What tells hosts apart: kinds of their nodes, and their links within, out and in.

    Attributes
    ----------
    host, kind : array per node
        Numbers of its host (-1: outside every host) and of its kind.
    src, dst : array per row
        Nodes that it leaves and enters.
    table : array (4, rows)
        Places of both ends in their hosts, rank of the kind, physical links.
    members, inner, out, into : _Grouped
        By host: nodes, rows within, rows out and rows in.
    """

    nodes: Nodes
    host: Ints
    kind: Ints
    src: Ints
    dst: Ints
    table: Ints
    members: _Grouped
    inner: _Grouped
    out: _Grouped
    into: _Grouped

    @classmethod
    def of(cls, nodes: Nodes, links: Links, src: Ints, dst: Ints) -> _Survey:
        rank = rank_of(links.kind)
        host = _joined(nodes, src, dst, rank < NETWORK)
        hosts = int(host.max(initial=-1)) + 1
        members = _Grouped(host, hosts)
        place = members.place
        table = np.stack([place[src], place[dst], rank, links.count])
        a, b = host[src], host[dst]
        inner = _Grouped(np.where(a == b, a, -1), hosts)
        out = _Grouped(np.where((a >= 0) & (b < 0), a, -1), hosts)
        into = _Grouped(np.where((b >= 0) & (a < 0), b, -1), hosts)
        kind = _numbers(nodes.kinds, {})
        return cls(nodes, host, kind, src, dst, table, members, inner, out, into)

    @property
    def hosts(self) -> int:
        return int(self.host.max(initial=-1)) + 1

    def odd_hosts(self) -> set[int]:
        """Hosts that are no dead ends: joined to another host, or to a switch by more than a network link."""
        a, b = self.host[self.src], self.host[self.dst]
        across = (a >= 0) & (b >= 0) & (a != b)
        inward = ((a < 0) != (b < 0)) & (self.table[2] < NETWORK)
        ends = np.concatenate([a[across], b[across], np.maximum(a, b)[inward]])
        return set(ends.tolist())

    def doors(self, number: int) -> int:
        """Rows out of a host or into it, whichever are more."""
        return max(len(self.out.of(number)), len(self.into.of(number)))

    def mark(self, number: int) -> bytes:
        """The same for hosts that are alike, and for no others."""
        parts = (
            self.kind[self.members.of(number)],
            self.table[:, self.inner.of(number)],
            self.table[:, self.out.of(number)][[0, 2, 3]],
            self.table[:, self.into.of(number)][[1, 2, 3]],
        )
        return b"|".join(part.tobytes() for part in parts)

    def pattern(self, number: int) -> Pattern:
        """The pattern of a host, as yet without any host."""
        inner = self.table[:, self.inner.of(number)].tolist()
        out = self.table[:, self.out.of(number)].tolist()
        into = self.table[:, self.into.of(number)].tolist()
        kinds = [self.nodes.kinds[at] for at in self.members.of(number).tolist()]
        ends = list(zip(inner[0], inner[1], strict=True))
        return Pattern(kinds, ends, (out[0], into[1]), inner[3], (out[3], into[3]), [])

    def stubs(self, patterns: list[Pattern], odd: bool) -> Stubs:
        """All nodes by their pattern, which gets its rows; `odd`: some hosts are no dead ends."""
        size = len(self.host)
        pattern, member = np.full(size, -1), np.full(size, -1)
        for number, one in enumerate(patterns):
            self._place(one)
            pattern[one.nodes] = number
            member[one.nodes] = np.arange(len(one.hosts))[:, None]
        transit = 0 if odd else min(map(_transit, patterns), default=FAR)
        outside = np.flatnonzero(self.host < 0)
        return Stubs(patterns, pattern, member, self.members.place, outside, transit)

    def _place(self, pattern: Pattern) -> None:
        """Give a pattern the nodes and rows of its hosts."""
        outside = np.cumsum(self.host < 0) - 1
        pattern.nodes = self.members.rows(pattern.hosts)
        pattern.rows = self.inner.rows(pattern.hosts)
        pattern.out = self.out.rows(pattern.hosts)
        pattern.into = self.into.rows(pattern.hosts)
        leaving, entering = self.dst[pattern.out], self.src[pattern.into]
        pattern.ends = outside[leaving], outside[entering]
        pattern.survey()


def _numbers(texts: tuple[str, ...], numbers: dict[str, int]) -> Ints:
    """A number for each text by first appearance, from 0; `numbers` has those that are given."""
    first = len(numbers)
    each = [numbers.setdefault(text, len(numbers) - first) for text in texts]
    return np.array(each, dtype=np.int64)


def _joined(nodes: Nodes, src: Ints, dst: Ints, inward: Bools) -> Ints:
    """Numbers of hosts where those that `inward` links join, directly or over switches of a rack, are one (NVL72)."""
    host = _numbers(nodes.hosts, {"": -1})
    above = _first_of(host)
    across = inward & (above[src] != above[dst])
    if not across.any():
        return host
    label = _spread(above, above[src[across]], above[dst[across]])
    # Switches that no such link leads to stay outside.
    inside = np.isin(label, label[host >= 0])
    numbers = np.full(len(host), -1)
    _, numbers[inside] = np.unique(label[inside], return_inverse=True)
    return numbers


def _first_of(host: Ints) -> Ints:
    """Of every node: the first of its host; a node outside of hosts stands for itself."""
    _, first, which = np.unique(host, return_index=True, return_inverse=True)
    return np.where(host >= 0, first[which], np.arange(len(host)))


def _spread(above: Ints, a: Ints, b: Ints) -> Ints:
    """Of every node: the lowest of all that links between `a` and `b` join with it, where `above` stands for each."""
    label = above
    while True:
        lower = label.copy()
        np.minimum.at(lower, b, label[a])
        np.minimum.at(lower, a, label[b])
        lower = lower[lower][above]
        if np.array_equal(lower, label):
            return label
        label = lower


def _transit(pattern: Pattern) -> int:
    """Fewest hops from a switch through a host of this pattern to another switch."""
    exits, entries = pattern.ends
    fewest = FAR
    for leave in range(pattern.out.shape[1]):
        for enter, door in enumerate(pattern.doors[1]):
            hops = int(pattern.away[0, door, leave]) + 2
            if hops < fewest and (exits[:, leave] != entries[:, enter]).any():
                fewest = hops
    return fewest


class _Grouped:
    """Positions by group number; -1 belongs to none."""

    def __init__(self, group: Ints, count: int) -> None:
        self._order = np.argsort(group, kind="stable")
        self._starts = np.searchsorted(group[self._order], np.arange(count + 1))
        self.place = np.zeros(len(group), dtype=np.int64)
        self.place[self._order] = (
            np.arange(len(group)) - self._starts[np.maximum(group[self._order], 0)]
        )

    def of(self, number: int) -> Ints:
        return self._order[self._starts[number] : self._starts[number + 1]]

    def rows(self, numbers: list[int]) -> Ints:
        """Positions of several groups of one size, a line each."""
        return np.stack([self.of(number) for number in numbers])
