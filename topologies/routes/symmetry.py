"""Symmetry of the network: groups of nodes in equivalent places, and which links correspond.

Routes follow from the wiring alone: from the places of nodes in their hosts, the switches behind the ports of these
hosts, and the paths between those switches. Where all of that is alike for two groups, the shortest paths of the one,
moved link by link to the other, are shortest paths there; and they are all of them where there are as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prestep.topologies.core.kinds import STORAGE_LINKS, rank_of
from prestep.topologies.core.links import (
    Bools,
    Ints,
    Links,
    Nodes,
    groups,
    numbered,
)
from prestep.topologies.routes.batch import Batch
from prestep.topologies.routes.net import Net
from prestep.topologies.routes.stubs import Pattern, Stubs

# What a link is to a plan; `src` and `dst` are where it lies.
TRAITS = ("kind_numbers", "count", "bandwidth", "raw", "latency")


class Symmetry:
    """Finds which groups of nodes of a cluster are in equivalent places."""

    def __init__(self, nodes: Nodes, links: Links, batch: Batch) -> None:
        self._nodes, self._links, self._batch = nodes, links, batch
        self._marks: dict[bytes, bytes] = {}

    @property
    def _stubs(self) -> Stubs:
        return self._batch.stubs

    @property
    def _net(self) -> Net:
        return self._batch.net

    @property
    def ends(self) -> tuple[Ints, Ints]:
        """Positions of the nodes that every link leaves and enters."""
        return self._links.ends(self._nodes)

    @cached_property
    def _even(self) -> bool:
        """Whether links between switches of the same two kinds are the same everywhere, and all of one rank.

        But for those of the storage fabric, over which nothing goes from GPU to GPU.
        """
        rows = self._net.rows
        rows = rows[~np.isin(self._links.kind[rows], sorted(STORAGE_LINKS))]
        kinds = {kind: at for at, kind in enumerate(dict.fromkeys(self._nodes.kinds))}
        kind = np.array([kinds[kind] for kind in self._nodes.kinds])
        src, dst = (kind[ends[rows]] for ends in self.ends)
        joined = [rows[which] for _, which in groups(src * len(kinds) + dst)]
        one_rank = len(np.unique(rank_of(self._links.kind[rows]))) <= 1
        return one_rank and not any(self._odd(some[:, None]).any() for some in joined)

    def _odd(self, table: Ints) -> Bools:
        """Of every line of links: whether it differs from the first line."""
        odd = np.zeros(len(table), dtype=bool)
        for name in TRAITS:
            column = getattr(self._links, name)
            odd |= (column[table] != column[table[0]]).any(axis=1)
        return odd

    @cached_property
    def _labels(self) -> list[Ints]:
        """By pattern: a number for every host, equal where all links in and at it have the same traits."""
        return [self._labels_of(one) for one in self._stubs.patterns]

    def _labels_of(self, pattern: Pattern) -> Ints:
        table = pattern.table
        labels = np.zeros(len(table), dtype=np.int64)
        marks: dict[bytes, int] = {}
        for at in np.flatnonzero(self._odd(table)).tolist():
            columns = [getattr(self._links, name)[table[at]] for name in TRAITS]
            mark = b"|".join(column.tobytes() for column in columns)
            labels[at] = marks.setdefault(mark, len(marks) + 1)
        return labels

    def mark(self, nodes: Ints) -> bytes | None:
        """Returns a key that equivalent groups of nodes (in order) share; None where equivalence cannot be shown."""
        stubs = self._stubs
        pattern, member = stubs.pattern[nodes], stubs.member[nodes]
        if (pattern < 0).any() or not self._even:
            return None
        hosts = _Hosts.of(pattern, member)
        within = _bytes(hosts.number, stubs.local[nodes])
        key = _bytes(hosts.pattern, hosts.member)
        # The same hosts have many groups.
        if key not in self._marks:
            self._marks[key] = self._mark(hosts)
        return b"|".join((within, self._marks[key]))

    def _mark(self, hosts: _Hosts) -> bytes:
        """The same for hosts in their order, wherever the nodes of a group lie in them."""
        labels = [self._labels[p][m] for p, m in hosts.pairs]
        switches, number = _numbered(self._switches(hosts))
        classes, kind = _numbered(self._net.classes(switches))
        between = self._between(classes, switches, kind)
        return _bytes(hosts.pattern, np.array(labels), number, kind, between)

    def _switches(self, hosts: _Hosts) -> Ints:
        """The switches behind all ports of some hosts, out of and into each."""
        if len(one := np.unique(hosts.pattern)) == 1:
            out, into = self._stubs.patterns[int(one[0])].ends
            return np.hstack([out[hosts.member], into[hosts.member]]).ravel()
        ends = [self._stubs.patterns[p].ends for p, _ in hosts.pairs]
        ports = [
            np.concatenate([out[m], into[m]])
            for (out, into), (_, m) in zip(ends, hosts.pairs, strict=True)
        ]
        return np.concatenate(ports)

    def _between(self, classes: Ints, switches: Ints, kind: Ints) -> Ints:
        """Hops and paths between switches of every two classes: from the first of each to the last."""
        first, last = np.empty((2, len(classes)), dtype=np.int64)
        first[kind[::-1]] = switches[::-1]
        last[kind] = switches
        surveys = [self._net.survey(one) for one in first.tolist()]
        tables = [(hops[last], paths[last]) for hops, paths in surveys]
        return np.array(tables, dtype=np.int64).ravel()

    def settled(self, nodes: Ints) -> bool:
        """Whether no route between switches of these nodes depends on where exactly its ends are.

        Routes do where there are more paths than are used, or where hop counts do not decide.
        """
        hosts = _Hosts.of(self._stubs.pattern[nodes], self._stubs.member[nodes])
        if not self._net.chosen:
            return True
        classes = set(self._net.classes(self._switches(hosts)).tolist())
        chosen = self._net.chosen
        return all(chosen[one].isdisjoint(classes) for one in classes & chosen.keys())

    def rows(self, links: Ints, nodes: Ints, others: Ints) -> Ints | None:
        """Returns the links of `others` that correspond to `links` of `nodes`; None where some have no counterpart."""
        walk = self._walk(links, nodes, others)
        if not walk.all_found():
            return None
        met = np.zeros(len(self._links), dtype=bool)
        met[walk.row] = True
        one_to_one = np.count_nonzero(met) == len(links) and self._same(links, walk.row)
        return walk.row if one_to_one else None

    def _same(self, links: Ints, others: Ints) -> bool:
        """Whether links have the same traits as others, one by one."""
        columns = [getattr(self._links, name) for name in TRAITS]
        return all(np.array_equal(column[links], column[others]) for column in columns)

    def _walk(self, links: Ints, nodes: Ints, others: Ints) -> _Walk:
        """The counterparts of links in or at the hosts, and of the switches there, before any path is followed."""
        stubs, outside = self._stubs, self._stubs.outside
        row, node = np.full(len(links), -1), np.full(len(self._nodes), -1)
        src, dst = (ends[links] for ends in self.ends)
        end = np.where(stubs.pattern[src] >= 0, src, dst)
        for number, which in groups(stubs.pattern[nodes]):
            one = stubs.patterns[number]
            here, there = stubs.member[nodes[which]], stubs.member[others[which]]
            image = np.full(len(one.hosts), -1)
            image[here] = there
            own = np.flatnonzero(stubs.pattern[end] == number)
            host = image[stubs.member[end[own]]]
            own, host = own[host >= 0], host[host >= 0]
            row[own] = one.table[host, self._column[links[own]]]
            for ends in one.ends:
                node[outside[ends[here]]] = outside[ends[there]]
        return _Walk(self, links, row, node)

    @cached_property
    def _column(self) -> Ints:
        """Of every link in or at a host: its column in the table of the host's pattern."""
        column = np.zeros(len(self._links), dtype=np.int64)
        for one in self._stubs.patterns:
            column[one.table] = np.arange(one.table.shape[1])
        return column

    def is_outside(self, nodes: Ints) -> Bools:
        """Whether nodes are in no host that is a dead end of the network."""
        outside: Bools = self._stubs.pattern[nodes] < 0
        return outside

    @cached_property
    def sides(self) -> tuple[_Side, _Side]:
        """Links by the node that they leave, and by the one that they enter."""
        src, dst = self.ends
        return _Side.of(src, dst, len(self._nodes)), _Side.of(
            dst, src, len(self._nodes)
        )


@dataclass(frozen=True, eq=False)
class _Hosts:
    """The hosts of some nodes.

    Attributes
    ----------
    number : array (nodes,)
        Of every node: its host, counted by first appearance.
    pattern, member : array (hosts,)
        Pattern of every host, and its place in it; `pairs` has both.
    """

    number: Ints
    pattern: Ints
    member: Ints

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.pattern.tolist(), self.member.tolist(), strict=True))

    @classmethod
    def of(cls, pattern: Ints, member: Ints) -> _Hosts:
        values, number = _numbered((pattern << 32) + member)
        patterns, members = values >> 32, values & ((1 << 32) - 1)
        return cls(number, patterns, members)


@dataclass(frozen=True, eq=False)
class _Side:
    """Links by the node at one end of them.

    Attributes
    ----------
    near, far : array (links,)
        The node at this end of each, and at the other.
    order, start : array
        Links by their near node, and where each node's begin among them.
    place : array (links,)
        Of every link among those of its near node.
    """

    near: Ints
    far: Ints
    order: Ints
    start: Ints
    place: Ints

    @classmethod
    def of(cls, near: Ints, far: Ints, nodes: int) -> _Side:
        order = np.argsort(near, kind="stable")
        start = np.searchsorted(near[order], np.arange(nodes + 1))
        place = np.zeros(len(near), dtype=np.int64)
        place[order] = np.arange(len(near)) - start[near[order]]
        return cls(near, far, order, start, place)

    def same(self, links: Ints, node: Ints) -> Ints:
        """The link that has the place of the given one at another node; -1 where that one has fewer or more."""
        near = self.near[links]
        as_many = (self.start[near + 1] - self.start[near]) == (
            self.start[node + 1] - self.start[node]
        )
        at = np.where(as_many, self.start[node] + self.place[links], 0)
        return np.where(as_many, self.order[at], -1)


@dataclass(frozen=True, eq=False)
class _Walk:
    """The counterpart of each of some links, and of nodes, of one group in another; -1 where it is not known yet."""

    symmetry: Symmetry
    links: Ints
    row: Ints
    node: Ints

    def all_found(self) -> bool:
        """Finds the counterpart of every link, going on from nodes whose counterpart is known."""
        at_host = self.row >= 0
        rest = np.flatnonzero(~at_host)
        while len(rest):
            for side in self.symmetry.sides:
                self._follow(side, rest)
            left = rest[self.row[rest] < 0]
            if len(left) == len(rest):
                return False
            rest = left
        return all(self._agree(ends, at_host) for ends in self.symmetry.ends)

    def _agree(self, ends: Ints, at_host: Bools) -> bool:
        """Whether nodes at one end of all links correspond: those in hosts do, as their links have the same place."""
        here, there = ends[self.links], ends[self.row]
        open_ = ~at_host | self.symmetry.is_outside(here)
        return np.array_equal(self.node[here[open_]], there[open_])

    def _follow(self, side: _Side, places: Ints) -> None:
        """Finds links by their place at a node whose counterpart is known, where their far ends agree."""
        near = self.node[side.near[self.links[places]]]
        places = places[(self.row[places] < 0) & (near >= 0)]
        links = self.links[places]
        rows = side.same(links, self.node[side.near[links]])
        beyond, known = side.far[rows], self.node[side.far[links]]
        good = (rows >= 0) & ((known < 0) | (known == beyond))
        self.row[places[good]] = rows[good]
        self.node[side.far[links[good]]] = beyond[good]


def _bytes(*parts: Ints) -> bytes:
    """Equal for equal numbers."""
    return b"|".join(part.astype(np.int64).tobytes() for part in parts)


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """Values by their first appearance, each once; and for every value its number among those."""
    which = numbered(values)
    _, first = np.unique(which, return_index=True)
    return values[first], which
