"""Many routes at once: the same bytes on the same links as `topologies.routes.router`, pair by pair, in columns.

A way inside a host is found once for all hosts that are alike; a way between hosts is the way out of one, the paths
between two switches, and the way into the other (`topologies.routes.stubs`). Pairs for which that
cannot be shown, from hop counts, to be all of the shortest paths are left to the router.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topologies.core.grouping import groups, opaque
from topologies.core.links import Floats, Ints, Links, Nodes
from topologies.routes.paths import MAX_PATHS, STRIDE, chosen
from topologies.routes.router import Router
from topologies.routes.stubs import FAR, Pattern, Stubs, find

_CHUNK = 1 << 18  # pairs at a time: bounds the memory
_COST = 1 << 10  # more CPUs than any path passes

Bools = npt.NDArray[np.bool_]


class Piece(NamedTuple):
    """Links of several pairs: row `rows[i, j]` carries `share[j]` of the bytes of pair `pairs[i]`."""

    pairs: Ints
    rows: Ints
    share: Floats


class Doors(NamedTuple):
    """Of every pair: its row out and its row in, whether they have one way alone, and how many are as good."""

    leave: Ints
    enter: Ints
    single: Bools
    best: Ints

    def of(self, which: Ints) -> Doors:
        """The doors of some pairs."""
        leave, enter, single, best = self
        return Doors(leave[which], enter[which], single[which], best[which])


@dataclass(frozen=True)
class Core:
    """Pairs (positions of them) that go the same way between two switches."""

    pairs: Ints
    rows: Ints
    share: Floats


def _plain(cost: Ints, least: Ints) -> Bools:
    """Whether CPUs do not matter: the best way has none, or every way has some.

    Where there are ways with a CPU and without, the router chooses: it may prefer a longer one.
    """
    by_cpu = np.where(cost // _COST < FAR, cost % _COST > 0, True).all(axis=1)
    plain: Bools = (least % _COST == 0) | by_cpu
    return plain


class Batch:
    """Routes of a cluster for whole arrays of pairs; nodes are positions in `nodes`."""

    def __init__(self, nodes: Nodes, links: Links, router: Router) -> None:
        self._nodes, self._links, self._router = nodes, links, router
        self._hops: dict[int, Ints] = {}
        self._cores: dict[tuple[int, int, int, int], tuple[Ints, Floats]] = {}
        self._routes: dict[tuple[int, int], Ints] = {}

    @property
    def size(self) -> int:
        """Rows of the cluster."""
        return len(self._links)

    @cached_property
    def stubs(self) -> Stubs:
        src, dst = self._router.ends
        return find(self._nodes, self._links, src, dst)

    def loads(self, src: Ints, dst: Ints, amount: Floats) -> Floats:
        """Bytes on every row of `links` when `amount[i]` bytes go from `src[i]` to `dst[i]`."""
        total = np.zeros(len(self._links))
        for start in range(0, len(src), _CHUNK):
            part = slice(start, start + _CHUNK)
            pieces, cores = self.resolve(src[part], dst[part])
            bytes_ = amount[part]
            for piece in pieces:
                rows, each = (
                    piece.rows.ravel(),
                    np.multiply.outer(bytes_[piece.pairs], piece.share).ravel(),
                )
                total += np.bincount(rows, weights=each, minlength=len(total))
            for core in cores:
                total[core.rows] += core.share * bytes_[core.pairs].sum()
        return total

    def spreads(self, src: Ints, dst: Ints) -> tuple[Ints, Ints, Floats]:
        """(pair, row, share) of every link that the pairs use, sorted by pair, then by row."""
        pieces, cores = self.resolve(src, dst)
        pieces += [
            Piece(
                c.pairs, np.broadcast_to(c.rows, (len(c.pairs), len(c.rows))), c.share
            )
            for c in cores
        ]
        if not pieces:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0)
        pair = np.concatenate(
            [np.repeat(piece.pairs, piece.rows.shape[1]) for piece in pieces]
        )
        row = np.concatenate([piece.rows.ravel() for piece in pieces])
        share = np.concatenate(
            [np.tile(piece.share, len(piece.pairs)) for piece in pieces]
        )
        order = np.lexsort((row, pair))
        return pair[order], row[order], share[order]

    def resolve(self, src: Ints, dst: Ints) -> tuple[list[Piece], list[Core]]:
        stubs = self.stubs
        known = (stubs.pattern[src] >= 0) & (stubs.pattern[dst] >= 0) & (src != dst)
        near = (
            known
            & (stubs.pattern[src] == stubs.pattern[dst])
            & (stubs.member[src] == stubs.member[dst])
        )
        pieces, cores = [], []  # type: tuple[list[Piece], list[Core]]
        left = [np.flatnonzero(~known & (src != dst))]
        left.append(self._inside(src, dst, np.flatnonzero(near), pieces))
        left.append(
            self._between(src, dst, np.flatnonzero(known & ~near), pieces, cores)
        )
        for at in np.concatenate(left).tolist():
            rows, share = self._router.spread(int(src[at]), int(dst[at]))
            pieces.append(Piece(np.array([at]), rows[None, :], share))
        return pieces, cores

    def _inside(self, src: Ints, dst: Ints, pairs: Ints, pieces: list[Piece]) -> Ints:
        """Ways in a host, found in the first of its pattern; returns the pairs for which leaving it may be as short."""
        stubs, left = self.stubs, [np.empty(0, dtype=np.int64)]
        key = (
            (stubs.pattern[src[pairs]] << 40)
            + (stubs.local[src[pairs]] << 20)
            + stubs.local[dst[pairs]]
        )
        for value, which in groups(key):
            at = pairs[which]
            pattern, a, b = (
                stubs.patterns[value >> 40],
                (value >> 20) & 0xFFFFF,
                value & 0xFFFFF,
            )
            rows, share = self._router.spread(
                int(pattern.nodes[0, a]), int(pattern.nodes[0, b])
            )
            hops = len(
                self._router.route(int(pattern.nodes[0, a]), int(pattern.nodes[0, b]))
            )
            outside = (
                int(
                    pattern.away[0, a].min(initial=FAR)
                    + pattern.home[0, b].min(initial=FAR)
                )
                + 2
            )
            local = np.searchsorted(pattern.rows[0], rows)
            if hops >= outside:
                left.append(at)
            else:
                pieces.append(
                    Piece(at, pattern.rows[stubs.member[src[at]]][:, local], share)
                )
        return np.concatenate(left)

    def _between(
        self,
        src: Ints,
        dst: Ints,
        pairs: Ints,
        pieces: list[Piece],
        cores: list[Core],
        paths: bool = True,
    ) -> Ints:
        """Ways between hosts by the doors they take; returns the pairs that do not have exactly one way to the net.

        Without `paths`, cores say only between which switches pairs go.
        """
        stubs, left = self.stubs, [np.empty(0, dtype=np.int64)]
        patterns = (stubs.pattern[src[pairs]] << 20) + stubs.pattern[dst[pairs]]
        for value, which in groups(patterns):
            at = pairs[which]
            first, second = stubs.patterns[value >> 20], stubs.patterns[value & 0xFFFFF]
            doors = self.doors(first, second, src[at], dst[at])
            good = doors.single & (doors.best == 1)
            left.append(at[~good])
            at, leave, enter = at[good], doors.leave[good], doors.enter[good]
            out = self.ways(first, src, at, leave, pieces, True)
            into = self.ways(second, dst, at, enter, pieces, False)
            s = first.ends[0][stubs.member[src[at]], leave]
            t = second.ends[1][stubs.member[dst[at]], enter]
            if paths:
                cores += self._core(src, dst, at, s, t, np.minimum(out, into))
            else:
                cores += self._switches(at, s, t)
        return np.concatenate(left)

    def _switches(self, at: Ints, s: Ints, t: Ints) -> list[Core]:
        """Pairs by the two switches between which they go: a core's rows are those two."""
        none = np.empty(0)
        ends = groups(s * len(self.stubs.outside) + t)
        return [Core(at[w], np.array([s[w[0]], t[w[0]]]), none) for _, w in ends]

    def doors(
        self, first: Pattern, second: Pattern, src: Ints, dst: Ints, nth: int = 0
    ) -> Doors:
        """The doors that each pair takes; of several that are as good, the ``nth``."""
        stubs = self.stubs
        a, b = stubs.local[src], stubs.local[dst]
        exits = first.ends[0][stubs.member[src]]
        entries = second.ends[1][stubs.member[dst]]
        if not exits.shape[1] or not entries.shape[1] or not stubs.transit:
            none = np.zeros(len(src), dtype=np.int64)
            return Doors(none, none, np.zeros(len(src), dtype=bool), none)
        # Pairs of nodes in the same places under the same switches take the same doors.
        places = np.concatenate([a[:, None], b[:, None], exits, entries], axis=1)
        _, one, which = np.unique(
            opaque(places), return_index=True, return_inverse=True
        )
        distance = self._distance(exits[one], entries[one])
        ends = first.away[:, a[one]], second.home[:, b[one]]
        doors = self._cheapest(*ends, distance, second.enters, nth)
        return doors.of(which)

    def _cheapest(
        self, away: Ints, home: Ints, distance: Ints, enters: Ints, nth: int
    ) -> Doors:
        """Doors with the fewest hops, then with the fewest CPUs."""
        hops = away[0][:, :, None] + home[0][:, None, :] + distance + 2
        cpus = away[1][:, :, None] + (home[1] + enters)[:, None, :]
        cost = (hops * _COST + cpus).reshape(len(hops), -1)
        least = cost.min(axis=1)
        as_good = cost == least[:, None]
        best = as_good.sum(axis=1)
        wanted = np.minimum(nth + 1, best)
        place = np.argmax(np.cumsum(as_good, axis=1) == wanted[:, None], axis=1)
        leave, enter = np.divmod(place, hops.shape[2])
        at = np.arange(len(hops))
        single = (away[2][at, leave] == 1) & (home[2][at, enter] == 1)
        single &= self._direct(away, home, least) & _plain(cost, least)
        return Doors(leave, enter, single, best)

    def _direct(self, away: Ints, home: Ints, least: Ints) -> Bools:
        """Whether no way through a third host is as short."""
        hops = least // _COST
        around = away[0].min(axis=1) + home[0].min(axis=1) + 2 + self.stubs.transit
        direct: Bools = (hops < around) & (hops < FAR)
        return direct

    def ways(
        self,
        pattern: Pattern,
        node: Ints,
        at: Ints,
        door: Ints,
        pieces: list[Piece],
        out: bool,
    ) -> Ints:
        """Adds the rows from nodes to their doors (or back), doors included; returns the narrowest of each."""
        stubs = self.stubs
        width = np.zeros(len(at), dtype=np.int64)
        for value, which in groups((stubs.local[node[at]] << 20) + door):
            rows = pattern.way(value >> 20, value & 0xFFFFF, out)
            width[which] = pattern.width_of(rows, value & 0xFFFFF, out)
            hosts = stubs.member[node[at[which]]]
            gates = (pattern.out if out else pattern.into)[hosts, value & 0xFFFFF]
            where = np.concatenate(
                [pattern.rows[hosts][:, rows], gates[:, None]], axis=1
            )
            pieces.append(Piece(at[which], where, np.ones(where.shape[1])))
        return width

    @cached_property
    def _net(self) -> tuple[Router, Ints]:
        """A router over the switches alone, and its rows as rows of the cluster."""
        outside = self.stubs.outside
        place = np.full(len(self._nodes), -1)
        place[outside] = np.arange(len(outside))
        src, dst = self._router.ends
        rows = np.flatnonzero((place[src] >= 0) & (place[dst] >= 0))
        columns = {
            key: getattr(self._links, key)[rows] for key in Links.__dataclass_fields__
        }
        texts = (self._nodes.names, self._nodes.kinds, self._nodes.hosts)
        nodes = Nodes(*(tuple(text[at] for at in outside.tolist()) for text in texts))
        return Router(nodes, replace(self._links, **columns)), rows

    def _distance(self, exits: Ints, entries: Ints) -> Ints:
        """Hops between switches, for every exit and every entry of every pair."""
        net, _ = self._net
        starts, where = np.unique(exits, return_inverse=True)
        for start in starts.tolist():
            if start not in self._hops:
                self._hops[start] = net.hops(start)
        table = np.stack([self._hops[start] for start in starts.tolist()])
        return table[where.reshape(exits.shape)[:, :, None], entries[:, None, :]]

    def _core(
        self, src: Ints, dst: Ints, at: Ints, s: Ints, t: Ints, width: Ints
    ) -> list[Core]:
        """Pairs by the switches between which they go, and by the paths they take there."""
        size = len(self.stubs.outside)
        found, where = np.unique(s * size + t, return_inverse=True)
        ways = [self.count(int(value) // size, int(value) % size) for value in found]
        step = np.maximum(1, np.array(ways, dtype=np.int64) // MAX_PATHS)
        # Of more paths than are kept, which ones are depends on the two ends; it repeats with the step.
        shift = (src[at] * STRIDE + dst[at]) % step[where] if len(at) else where
        # On paths of equal width the narrower ends change nothing.
        key = (where * int(shift.max(initial=0) + 1) + shift) * int(
            width.max(initial=0) + 1
        ) + width
        cores = []
        for _, which in groups(key):
            one = which[0]
            rows, share = self.paths(
                int(s[one]), int(t[one]), int(shift[one]), int(width[one])
            )
            if len(rows):
                cores.append(Core(at[which], rows, share))
        return cores

    def drawn(self, src: Ints, dst: Ints, draw: Floats) -> list[Ints | None]:
        """One path of each pair, rows ascending: the `draw`-th (from 0 to below 1) of all that are equally good.

        None where hop counts do not show that the ways to the switches are the only ones.
        """
        found: list[Ints | None] = [None] * len(src)
        stubs = self.stubs
        apart = (stubs.pattern[src] != stubs.pattern[dst]) | (
            stubs.member[src] != stubs.member[dst]
        )
        pieces, cores = [], []  # type: tuple[list[Piece], list[Core]]
        pairs = np.flatnonzero(
            apart & (stubs.pattern[src] >= 0) & (stubs.pattern[dst] >= 0)
        )
        left = set(self._between(src, dst, pairs, pieces, cores, paths=False).tolist())
        ways: dict[int, list[int]] = {
            int(at): [] for at in pairs if int(at) not in left
        }
        for piece in pieces:
            for at, rows in zip(piece.pairs.tolist(), piece.rows.tolist(), strict=True):
                ways[at] += rows
        net, rows = self._net
        for core in cores:
            s, t = (int(end) for end in core.rows)
            if s == t:
                continue
            total, path = net.numbered(s, t)
            for at in core.pairs.tolist():
                ways[at] += rows[path(int(draw[at] * total))].tolist()
        for at, way in ways.items():
            found[at] = np.array(sorted(way), dtype=np.int64)
        return found

    def count(self, s: int, t: int) -> int:
        """Equally good paths between two switches."""
        return 1 if s == t else len(self._all(s, t))

    def _all(self, s: int, t: int) -> Ints:
        """All paths between two switches in link order, one in each line, as rows of the cluster."""
        if (s, t) not in self._routes:
            net, rows = self._net
            if self._hops[s][t] == 2 and net.alike:
                self._routes[s, t] = rows[net.over_one(s, t)]
            else:
                total, path = net.numbered(s, t)
                self._routes[s, t] = rows[
                    np.array([path(at) for at in range(total)], dtype=np.int64)
                ]
        return self._routes[s, t]

    def paths(self, s: int, t: int, shift: int, width: int) -> tuple[Ints, Floats]:
        """Rows between two switches and the share of each; `width` bounds the physical links of a path."""
        key = (s, t, shift, width)
        if s == t:
            return np.empty(0, dtype=np.int64), np.empty(0)
        if key not in self._cores:
            ways = self._all(s, t)
            if len(ways) > MAX_PATHS:
                ways = ways[chosen(len(ways), shift)]
            count = np.minimum(self._links.count[ways].min(axis=1), width)
            unique, where = np.unique(ways, return_inverse=True)
            each = np.repeat(count / count.sum(), ways.shape[1])
            share: Floats = np.bincount(where.ravel(), weights=each).astype(np.float64)
            self._cores[key] = unique, share
        return self._cores[key]
