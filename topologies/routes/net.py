"""The switches outside every host as a network of their own: hops and paths between any two of them.

Twins are switches with the same links to the same neighbours. No shortest path from a switch passes a twin of it: the
twin's next hop could have been taken at once. So the paths from one of them are the paths from any other, but for their
first links; and likewise the paths to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from prestep.topologies.core.kinds import rank_of
from prestep.topologies.core.links import Floats, Ints, Links, Nodes, distinct, groups
from prestep.topologies.routes.router import Router, chosen

NONE = np.empty((0, 0), dtype=np.int64)  # links between a switch and itself


@dataclass(frozen=True, eq=False)
class Twins:
    """Switches by class.

    Attributes
    ----------
    first : array per node
        The first of its twins: the node itself where it has none before it.
    out, into : list per node of array
        Rows that leave it and enter it, in an order common to all twins.
    """

    first: Ints
    out: list[Ints]
    into: list[Ints]

    @classmethod
    def of(cls, kinds: Sequence[str], src: Ints, dst: Ints, links: Links) -> Twins:
        """Twins among nodes of some kinds, where row i of `links` leads from `src[i]` to `dst[i]`."""
        out, into = _by_node(src, len(kinds)), _by_node(dst, len(kinds))
        traits = np.stack([rank_of(links.kind), links.count])
        leaving, entering = np.vstack([traits, dst]), np.vstack([traits, src])
        first: list[int] = []
        classes: dict[tuple[str, bytes, bytes], int] = {}
        for node, kind in enumerate(kinds):
            neighbours = leaving[:, out[node]], entering[:, into[node]]
            mark = kind, neighbours[0].tobytes(), neighbours[1].tobytes()
            first.append(classes.setdefault(mark, node))
        return cls(np.array(first, dtype=np.int64), out, into)


def _by_node(ends: Ints, size: int) -> list[Ints]:
    """Rows by the node at one end of them, in link order."""
    order = np.argsort(ends, kind="stable")
    return np.split(order, np.searchsorted(ends[order], np.arange(1, size)))


@dataclass(frozen=True, eq=False)
class _Bundle:
    """All paths between two switches in link order, one in each line.

    Attributes
    ----------
    rows : array (paths, hops)
    first, last : array (paths,)
        Places of a path's first row among those that leave the one switch, and of its last among those that enter
        the other.
    """

    rows: Ints
    first: Ints
    last: Ints

    def between(self, out: Ints, into: Ints, which: Ints | slice) -> Ints:
        """Some of the paths between twins of the two switches, whose rows are `out` and `into`."""
        rows = self.rows[which].copy()
        rows[:, 0] = out[self.first[which]]
        rows[:, -1] = into[self.last[which]]
        return rows


class Net:
    """Paths between switches, which are positions in `outside` here; rows are the cluster's."""

    def __init__(
        self, nodes: Nodes, links: Links, ends: tuple[Ints, Ints], outside: Ints
    ) -> None:
        place = np.full(len(nodes), -1)
        place[outside] = np.arange(len(outside))
        src, dst = ends
        self.rows = np.flatnonzero((place[src] >= 0) & (place[dst] >= 0))
        self._nodes = some_nodes(nodes, outside)
        self._links = some_links(links, self.rows)
        self._router = Router(self._nodes, self._links)
        self._count = links.count
        # Classes of switches between which there were more paths than are kept, so that the two ends chose.
        self.chosen: dict[int, set[int]] = {}
        self._surveys: dict[int, tuple[Ints, Ints]] = {}
        self._carried: dict[bytes, tuple[Ints, Ints]] = {}
        self._bundles: dict[tuple[int, int], _Bundle] = {}
        self._paths: dict[tuple[int, int, int, int], tuple[Ints, Floats]] = {}

    @cached_property
    def _twins(self) -> Twins:
        return Twins.of(self._nodes.kinds, *self._router.ends, self._links)

    def distance(self, exits: Ints, entries: Ints) -> Ints:
        """Hops between switches, for every exit and every entry of every pair."""
        first = self._twins.first[exits]
        starts, where = np.unique(first, return_inverse=True)
        table = np.stack([self._router.hops(start) for start in starts.tolist()])
        line, goal = where.reshape(exits.shape)[:, :, None], entries[:, None, :]
        hops = table[line, goal]
        # To the first of its twins a switch has as far as that one to it.
        back = goal == first[:, :, None]
        hops = np.where(back, table[line, exits[:, :, None]], hops)
        return np.where(goal == exits[:, :, None], 0, hops)

    def classes(self, switches: Ints) -> Ints:
        """The first of the twins of each switch."""
        return self._twins.first[switches]

    def survey(self, switch: int) -> tuple[Ints, Ints]:
        """Hops to every switch, and the number of shortest paths, whatever their links."""
        if switch not in self._surveys:
            hops = self._router.hops(switch)
            self._surveys[switch] = hops, self._router.paths_of(hops)
        return self._surveys[switch]

    def choose(self, exits: Ints, entries: Ints) -> None:
        """Remember that the two ends said which paths were taken between some switches."""
        first = self._twins.first
        ends = zip(first[exits].tolist(), first[entries].tolist(), strict=True)
        for start, end in set(ends):
            self.chosen.setdefault(start, set()).add(end)

    def count(self, s: int, t: int) -> int:
        """Equally good paths between two switches."""
        return 1 if s == t else len(self._bundle(s, t).rows)

    def counts(self, ends: Ints) -> Ints:
        """`count` of many pairs of switches."""
        counts = np.ones(len(ends), dtype=np.int64)
        apart = np.flatnonzero(ends[:, 0] != ends[:, 1])
        classes = self._twins.first[ends[apart]]
        for at in _kinds(classes, apart):
            s, t = ends[at[0]].tolist()
            # Neighbours have links of their own; all other twins have as many paths.
            if self._bundle(s, t).rows.shape[1] > 1:
                counts[at] = self.count(s, t)
            else:
                counts[at] = [self.count(*pair) for pair in ends[at].tolist()]
        return counts

    def lines(self, s: int, t: int, which: Ints | slice = slice(None)) -> Ints:
        """Paths between two switches in link order, one in each line: all, or those of some numbers."""
        if s == t:
            return NONE
        out, into = self._twins.out[s], self._twins.into[t]
        return self.rows[self._bundle(s, t).between(out, into, which)]

    def carried(self, switches: Ints, numbers: Ints | None) -> tuple[Ints, Ints]:
        """Rows of all paths between some pairs of switches (one in each line), and how many of the paths each carries.

        `numbers`: of the paths that are taken between the two, where all pairs are the same; None: every path.
        """
        key = switches.tobytes() + (b"" if numbers is None else numbers.tobytes())
        if numbers is not None:
            self.choose(*switches[:1].T)
        if key not in self._carried:
            which = slice(None) if numbers is None else numbers
            pairs = switches.tolist() if numbers is None else switches[:1].tolist()
            lines = [self.lines(s, t, which).ravel() for s, t in pairs]
            self._carried[key] = np.unique(np.concatenate(lines), return_counts=True)
        return self._carried[key]

    def _bundle(self, s: int, t: int) -> _Bundle:
        """The paths between two switches that stand for `s` and `t`: twins of them, or they themselves."""
        first = self._twins.first
        classes = (int(first[s]), int(first[t]))
        if classes not in self._bundles:
            self._bundles[classes] = self._bundled(s, t)
        bundle = self._bundles[classes]
        # Neighbours have a link of their own.
        return bundle if bundle.rows.shape[1] > 1 else self._bundled(s, t)

    def _bundled(self, s: int, t: int) -> _Bundle:
        rows = self._router.lines(s, t)
        out, into = self._twins.out[s], self._twins.into[t]
        first, last = (
            np.searchsorted(out, rows[:, 0]),
            np.searchsorted(into, rows[:, -1]),
        )
        return _Bundle(rows, first, last)

    def paths(self, s: int, t: int, shift: int, width: int) -> tuple[Ints, Floats]:
        """Rows between two switches and the share of each; `width` bounds the physical links of a path."""
        if s == t:
            return np.empty(0, dtype=np.int64), np.empty(0)
        key = (s, t, shift, width)
        if key not in self._paths:
            count = self.count(s, t)
            which = np.array(chosen(count, shift))
            if len(which) < count:
                self.choose(np.array([s]), np.array([t]))
            self._paths[key] = self._shares(self.lines(s, t, which), width)
        return self._paths[key]

    def _shares(self, paths: Ints, width: int) -> tuple[Ints, Floats]:
        """Rows of some paths and the share on each: a path gets bytes by its narrowest part."""
        narrowest = np.minimum(self._count[paths].min(axis=1), width)
        rows, where = np.unique(paths, return_inverse=True)
        each = np.repeat(narrowest / narrowest.sum(), paths.shape[1])
        shares: Floats = np.bincount(where.ravel(), weights=each).astype(np.float64)
        return rows, shares


def _kinds(table: Ints, numbers: Ints) -> list[Ints]:
    """Numbers of the rows of a table, those of equal rows together."""
    if not len(table):
        return []
    _, which = distinct(table)
    return [numbers[some] for _, some in groups(which)]


def some_nodes(nodes: Nodes, which: Ints) -> Nodes:
    """Some of the nodes, in the order given."""
    texts = (nodes.names, nodes.kinds, nodes.hosts)
    return Nodes(*(tuple(text[at] for at in which.tolist()) for text in texts))


def some_links(links: Links, rows: Ints) -> Links:
    """Some of the links, in the order given."""
    columns = {key: getattr(links, key)[rows] for key in Links.__dataclass_fields__}
    return replace(links, **columns)
