"""Hosts as copies of few patterns, and as dead ends of the network: what `prestep.topologies.routes.batch` knows of
a cluster.

Hosts whose nodes and inner links are alike share a `Pattern`; a way inside one of them is the same way in all. A host
is a dead end where no shortest path passes through it, so that a way between hosts is one way out, one way through the
switches, and one way in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from prestep.topologies.core.checks import joined
from prestep.topologies.core.kinds import ENDPOINTS, NETWORK, rank_of
from prestep.topologies.core.links import Bools, Ints, Links, Nodes, distinct, groups
from prestep.topologies.routes.shapes import Shapes

MOST_PORTS = 128  # links out of a host, beyond which it is a network of its own
FAR = 1 << 20  # hops to what cannot be reached


@dataclass(eq=False)
class Pattern:
    """Hosts that are alike: `rows[i]` are the inner rows of the i-th of them, in the order common to all.

    Attributes
    ----------
    nodes : array (hosts, nodes of one host)
        Positions in the fabric's nodes.
    rows, out, into, table : array (hosts, rows of one host)
        Rows of links inside a host, out of it, and into it; and all of these.
    ends : array (hosts, out), array (hosts, into)
        Positions, among the nodes outside every host, that rows leave to and come from.
    away, home : array (nodes, out or into) of hops, of CPUs, and of the number of best ways
        From a node to the node at which an out row begins; from the node at which an into row ends.
    sides : dict of `prestep.topologies.routes.fan_out.Side`
    """

    kinds: list[str]
    inner: list[tuple[int, int]]
    ports: tuple[list[int], list[int]]
    width: list[int]
    port_width: tuple[list[int], list[int]]
    hosts: list[int]
    nodes: Ints = field(init=False)
    rows: Ints = field(init=False)
    out: Ints = field(init=False)
    into: Ints = field(init=False)
    table: Ints = field(init=False)
    ends: tuple[Ints, Ints] = field(init=False)
    away: Ints = field(init=False)
    home: Ints = field(init=False)
    sides: dict[tuple[int, ...], Any] = field(default_factory=dict)
    _ways: dict[tuple[int, int, bool], list[int]] = field(default_factory=dict)

    @cached_property
    def under(self) -> tuple[Ints, Ints]:
        """Of every host two numbers, equal for hosts with the same switches behind all ports out, and all into them."""
        exits, entries = self.ends
        return distinct(exits)[1], distinct(entries)[1]

    @cached_property
    def shapes(self) -> tuple[Shapes, Shapes]:
        """Which ports out of every host lead to one switch, and which ports into it come from one."""
        exits, entries = self.ends
        return Shapes.of(exits), Shapes.of(entries)

    @property
    def enters(self) -> Ints:
        """Of every into row: 1 where it enters a CPU."""
        entered = [self.kinds[port] == "cpu" for port in self.ports[1]]
        return np.array(entered, dtype=np.int64)

    def survey(self) -> None:
        """Computes hops, CPUs and number of best paths between every node and every port."""
        self.away = self._table(self.ports[0], out=True)
        self.home = self._table(self.ports[1], out=False)

    def _table(self, ports: list[int], out: bool) -> Ints:
        if not ports:
            return np.zeros((3, len(self.kinds), 0), dtype=np.int64)
        near = self._edges[out]
        floods = [_flood(self.kinds, near, port, out) for port in ports]
        columns = [(flood.hops, flood.cpus, flood.ways) for flood in floods]
        return np.array(columns, dtype=np.int64).transpose(1, 2, 0)

    @cached_property
    def _edges(self) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
        """By node: the nodes to which a row leads from it, and that row; the nodes from which one leads to it."""
        after: list[list[tuple[int, int]]] = [[] for _ in self.kinds]
        before: list[list[tuple[int, int]]] = [[] for _ in self.kinds]
        for row, (src, dst) in enumerate(self.inner):
            after[src].append((dst, row))
            before[dst].append((src, row))
        return after, before

    def way(self, node: int, port: int, out: bool) -> list[int]:
        """Returns the inner rows of the best path between a node and a port; empty at the port's own node."""
        key = node, port, out
        if key not in self._ways:
            self._ways[key] = self._way(node, port, out)
        return self._ways[key]

    def _way(self, node: int, port: int, out: bool) -> list[int]:
        near = self._edges[not out]
        table = self.away if out else self.home
        hops, cpus = table[0, :, port].tolist(), table[1, :, port].tolist()
        target = self.ports[0 if out else 1][port]
        rows = []
        at = node
        while at != target:
            for other, row in near[at]:
                enters = self.kinds[other if out else at] == "cpu"
                passable = other == target or self.kinds[other] not in ENDPOINTS
                nearer = hops[other] == hops[at] - 1
                if passable and nearer and cpus[other] + enters == cpus[at]:
                    rows.append(row)
                    at = other
                    break
        return rows

    def width_of(self, rows: list[int], port: int, out: bool) -> int:
        """Returns the fewest physical links of any of these rows and the port."""
        widths = [self.width[row] for row in rows]
        return min([self.port_width[0 if out else 1][port], *widths])

    def rows_of(self, hosts: Ints, inner: list[int], port: int, out: bool) -> Ints:
        """Returns the fabric's rows on a path by inner rows and a port, for each of some hosts."""
        ports = self.out if out else self.into
        last = ports[hosts, port][:, None]
        return np.concatenate([self.rows[hosts][:, inner], last], axis=1)


@dataclass(frozen=True, eq=False)
class _Flood:
    """Between every node of a host and one port: hops, CPUs entered, and number of best ways."""

    kinds: list[str]
    out: bool
    hops: list[int]
    cpus: list[int]
    ways: list[int]

    def reach(self, node: int, other: int) -> None:
        """Takes the step between two neighbours into account, `node` being the one nearer the port."""
        # Out of the host, the step enters `node`; into it, `other`.
        entered = node if self.out else other
        cpus = self.cpus[node] + (self.kinds[entered] == "cpu")
        hops = self.hops[node] + 1
        as_short = self.hops[other] == hops
        if self.hops[other] == FAR or (as_short and cpus < self.cpus[other]):
            self.hops[other], self.cpus[other] = hops, cpus
            self.ways[other] = self.ways[node]
        elif as_short and cpus == self.cpus[other]:
            self.ways[other] += self.ways[node]


def _flood(
    kinds: list[str], near: list[list[tuple[int, int]]], port: int, out: bool
) -> _Flood:
    """Breadth first from a port; no way leads through a GPU, a memory or a disk."""
    size = len(kinds)
    flood = _Flood(kinds, out, [FAR] * size, [0] * size, [0] * size)
    flood.hops[port], flood.ways[port] = 0, 1
    edge = [port]
    while edge:
        following = []
        for node in edge:
            if kinds[node] in ENDPOINTS:
                continue
            for other, _ in near[node]:
                if flood.hops[other] == FAR:
                    following.append(other)
                flood.reach(node, other)
        edge = following
    return flood


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
    odd = survey.odd_hosts()
    many = np.maximum(survey.out.sizes, survey.into.sizes) > MOST_PORTS
    odd |= set(np.flatnonzero(many).tolist())
    hosts = np.delete(np.arange(survey.hosts), sorted(odd))
    patterns = [survey.pattern(alike.tolist()) for alike in survey.alike(hosts)]
    return survey.stubs(patterns, bool(odd))


@dataclass(frozen=True, eq=False)
class _Survey:
    """What distinguishes hosts: kinds of their nodes, and their links within, out and in.

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
        rank = rank_of(np.array(links.kinds))[links.kind_numbers]
        host = _joined(nodes, src, dst, rank < NETWORK)
        hosts = int(host.max(initial=-1)) + 1
        members = _Grouped(host, hosts)
        place = members.places(host)
        table = np.stack([place[src], place[dst], rank, links.count])
        a, b = host[src], host[dst]
        inner = _Grouped(np.where(a == b, a, -1), hosts)
        out = _Grouped(np.where((a >= 0) & (b < 0), a, -1), hosts)
        into = _Grouped(np.where((b >= 0) & (a < 0), b, -1), hosts)
        kinds = {kind: at for at, kind in enumerate(dict.fromkeys(nodes.kinds))}
        kind = np.array([kinds[kind] for kind in nodes.kinds])
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

    def alike(self, hosts: Ints) -> list[Ints]:
        """Hosts of the same pattern together, in the order of the first of each."""
        if not len(hosts):
            return []
        parts = (self.members, self.inner, self.out, self.into)
        _, size = distinct(np.stack([part.sizes[hosts] for part in parts], axis=1))
        found = []
        for _, same in groups(size):
            _, mark = distinct(self._marks(hosts[same]))
            found += [hosts[same[some]] for _, some in groups(mark)]
        return sorted(found, key=lambda numbers: int(numbers[0]))

    def _marks(self, hosts: Ints) -> Ints:
        """A line for each of some hosts as large as each other, equal for those of the same pattern alone."""
        table = self.table
        inner, out, into = (
            part.rows(hosts) for part in (self.inner, self.out, self.into)
        )
        links = (*table[:, inner], *table[[0, 2, 3]][:, out], *table[1:][:, into])
        return np.hstack([self.kind[self.members.rows(hosts)], *links])

    def pattern(self, hosts: list[int]) -> Pattern:
        """Returns the pattern of some hosts, without its nodes and rows."""
        number = hosts[0]
        inner = self.table[:, self.inner.of(number)].tolist()
        out = self.table[:, self.out.of(number)].tolist()
        into = self.table[:, self.into.of(number)].tolist()
        kinds = [self.nodes.kinds[at] for at in self.members.of(number).tolist()]
        ends = list(zip(inner[0], inner[1], strict=True))
        return Pattern(
            kinds, ends, (out[0], into[1]), inner[3], (out[3], into[3]), hosts
        )

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
        local = self.members.places(self.host)
        return Stubs(patterns, pattern, member, local, outside, transit)

    def _place(self, pattern: Pattern) -> None:
        """Give a pattern the nodes and rows of its hosts."""
        outside = np.cumsum(self.host < 0) - 1
        pattern.nodes = self.members.rows(pattern.hosts)
        parts = [one.rows(pattern.hosts) for one in (self.inner, self.out, self.into)]
        pattern.table = np.concatenate(parts, axis=1)
        places = np.cumsum([part.shape[1] for part in parts[:2]])
        pattern.rows, pattern.out, pattern.into = np.split(
            pattern.table, places, axis=1
        )
        leaving, entering = self.dst[pattern.out], self.src[pattern.into]
        pattern.ends = outside[leaving], outside[entering]
        pattern.survey()


def _joined(nodes: Nodes, src: Ints, dst: Ints, inward: Bools) -> Ints:
    """Numbers of hosts where those that `inward` links join, directly or over switches of a rack, are one (NVL72)."""
    host, above = nodes.host_at, nodes.above
    across = inward & (above[src] != above[dst])
    if not across.any():
        return host
    a, b = above[src[across]], above[dst[across]]
    label = joined(len(host), a, b)[above]
    # Switches that no such link leads to stay outside.
    inside = np.isin(label, label[host >= 0])
    numbers = np.full(len(host), -1)
    _, numbers[inside] = np.unique(label[inside], return_inverse=True)
    return numbers


def _transit(pattern: Pattern) -> int:
    """Fewest hops from a switch through a host of this pattern to another switch."""
    exits, entries = pattern.ends
    fewest = FAR
    for leave in range(pattern.out.shape[1]):
        for enter, port in enumerate(pattern.ports[1]):
            hops = int(pattern.away[0, port, leave]) + 2
            if hops < fewest and (exits[:, leave] != entries[:, enter]).any():
                fewest = hops
    return fewest


class _Grouped:
    """Positions by group number; -1 belongs to none."""

    def __init__(self, group: Ints, count: int) -> None:
        self._order = np.argsort(group, kind="stable")
        self._starts = np.searchsorted(group[self._order], np.arange(count + 1))

    def places(self, group: Ints) -> Ints:
        """The place of every position in its group; `group` as at first."""
        place = np.arange(len(group))
        place[self._order] = place - self._starts[np.maximum(group[self._order], 0)]
        return place

    def of(self, number: int) -> Ints:
        return self._order[self._starts[number] : self._starts[number + 1]]

    @property
    def sizes(self) -> Ints:
        """How many there are of each group."""
        return np.diff(self._starts)

    def rows(self, numbers: Sequence[int] | Ints) -> Ints:
        """Positions of several groups of one size, a line each."""
        starts = self._starts[numbers]
        size = self._starts[numbers[0] + 1] - starts[0]
        positions: Ints = self._order[starts[:, None] + np.arange(size)]
        return positions
