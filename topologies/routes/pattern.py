"""Hosts that are alike, and the ways between the nodes of one of them and the doors to the network."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prestep.topologies.core.kinds import ENDPOINTS
from prestep.topologies.core.links import Ints

FAR = 1 << 20  # hops to what cannot be reached


@dataclass(eq=False)
class Pattern:
    """Hosts that are alike: `rows[i]` are the inner rows of the i-th of them, in the order common to all.

    Attributes
    ----------
    nodes : array (hosts, nodes of one host)
        Positions in the fabric's nodes.
    rows, out, into : array (hosts, rows of one host)
        Rows of links inside a host, out of it, and into it.
    ends : array (hosts, out), array (hosts, into)
        Positions, among the nodes outside every host, that rows leave to and come from.
    away, home : array (nodes, out or into) of hops, of CPUs, and of the number of best ways
        From a node to where an out row begins; from where an into row ends to a node.
    """

    kinds: list[str]
    inner: list[tuple[int, int]]
    doors: tuple[list[int], list[int]]
    width: list[int]
    door_width: tuple[list[int], list[int]]
    hosts: list[int]
    nodes: Ints = field(init=False)
    rows: Ints = field(init=False)
    out: Ints = field(init=False)
    into: Ints = field(init=False)
    ends: tuple[Ints, Ints] = field(init=False)
    away: Ints = field(init=False)
    home: Ints = field(init=False)
    _ways: dict[tuple[int, int, bool], list[int]] = field(default_factory=dict)

    @property
    def enters(self) -> Ints:
        """Of every into row: 1 where it enters a CPU."""
        entered = [self.kinds[door] == "cpu" for door in self.doors[1]]
        return np.array(entered, dtype=np.int64)

    def survey(self) -> None:
        """Hops, CPUs and ways between every node and every door."""
        self.away = self._table(self.doors[0], out=True)
        self.home = self._table(self.doors[1], out=False)

    def _table(self, doors: list[int], out: bool) -> Ints:
        if not doors:
            return np.zeros((3, len(self.kinds), 0), dtype=np.int64)
        near = self._edges(out)
        floods = [_flood(self.kinds, near, door, out) for door in doors]
        columns = [(flood.hops, flood.cpus, flood.ways) for flood in floods]
        return np.array(columns, dtype=np.int64).transpose(1, 2, 0)

    def _edges(self, out: bool) -> list[list[tuple[int, int]]]:
        """By node: the nodes from which a row leads to it (or to which one leads from it), and that row."""
        near: list[list[tuple[int, int]]] = [[] for _ in self.kinds]
        for row, (src, dst) in enumerate(self.inner):
            near[dst if out else src].append((src if out else dst, row))
        return near

    def way(self, node: int, door: int, out: bool) -> list[int]:
        """Inner rows of the only best way between a node and a door (its number), and nothing for the door's node."""
        key = node, door, out
        if key not in self._ways:
            self._ways[key] = self._way(node, door, out)
        return self._ways[key]

    def _way(self, node: int, door: int, out: bool) -> list[int]:
        near = self._edges(not out)
        table = self.away if out else self.home
        hops, cpus = table[0, :, door].tolist(), table[1, :, door].tolist()
        target = self.doors[0 if out else 1][door]
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

    def width_of(self, rows: list[int], door: int, out: bool) -> int:
        """Physical links of the narrowest of these rows and the door's."""
        widths = [self.width[row] for row in rows]
        return min([self.door_width[0 if out else 1][door], *widths])

    def rows_of(self, hosts: Ints, inner: list[int], door: int, out: bool) -> Ints:
        """Rows of the fabric, for each of some hosts, on a way by inner rows and a door."""
        doors = self.out if out else self.into
        last = doors[hosts, door][:, None]
        return np.concatenate([self.rows[hosts][:, inner], last], axis=1)


@dataclass(frozen=True, eq=False)
class _Flood:
    """Between every node of a host and one door: hops, CPUs entered, and number of best ways."""

    kinds: list[str]
    out: bool
    hops: list[int]
    cpus: list[int]
    ways: list[int]

    def reach(self, node: int, other: int) -> None:
        """Takes the step between two neighbours into account, `node` being the one nearer the door."""
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
    kinds: list[str], near: list[list[tuple[int, int]]], door: int, out: bool
) -> _Flood:
    """Breadth first from a door; no way leads through a GPU, a memory or a disk."""
    size = len(kinds)
    flood = _Flood(kinds, out, [FAR] * size, [0] * size, [0] * size)
    flood.hops[door], flood.ways[door] = 0, 1
    edge = [door]
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
