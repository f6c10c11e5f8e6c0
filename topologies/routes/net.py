"""The switches outside every host as a network of their own: hops and paths between any two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from topologies.core.links import Floats, Ints, Links, Nodes
from topologies.routes.paths import MAX_PATHS, chosen
from topologies.routes.router import Router


class Net:
    """Paths between switches, which are positions in `outside` here; rows are the cluster's."""

    def __init__(
        self, nodes: Nodes, links: Links, ends: tuple[Ints, Ints], outside: Ints
    ) -> None:
        place = np.full(len(nodes), -1)
        place[outside] = np.arange(len(outside))
        src, dst = ends
        self._rows = np.flatnonzero((place[src] >= 0) & (place[dst] >= 0))
        self._router = Router(
            _some_nodes(nodes, outside), _some_links(links, self._rows)
        )
        self._count = links.count
        self._hops: dict[int, Ints] = {}
        self._all_paths: dict[tuple[int, int], Ints] = {}
        self._paths: dict[tuple[int, int, int, int], tuple[Ints, Floats]] = {}

    def distance(self, exits: Ints, entries: Ints) -> Ints:
        """Hops between switches, for every exit and every entry of every pair."""
        starts, where = np.unique(exits, return_inverse=True)
        table = np.stack([self._hops_from(start) for start in starts.tolist()])
        return table[where.reshape(exits.shape)[:, :, None], entries[:, None, :]]

    def _hops_from(self, switch: int) -> Ints:
        if switch not in self._hops:
            self._hops[switch] = self._router.hops(switch)
        return self._hops[switch]

    def count(self, s: int, t: int) -> int:
        """Equally good paths between two switches."""
        return 1 if s == t else len(self._all(s, t))

    def numbered(self, s: int, t: int) -> tuple[int, Callable[[int], Ints]]:
        """How many equally good paths there are, and a function that gives the rows of the one of a number."""
        total, path = self._router.numbered(s, t)
        return total, lambda at: self._rows[path(at)]

    def _all(self, s: int, t: int) -> Ints:
        """All paths between two switches in link order, one in each line."""
        if (s, t) not in self._all_paths:
            if self._hops_from(s)[t] == 2 and self._router.alike:
                inner = self._router.over_one(s, t)
            else:
                total, path = self._router.numbered(s, t)
                inner = np.array([path(at) for at in range(total)], dtype=np.int64)
            self._all_paths[s, t] = self._rows[inner]
        return self._all_paths[s, t]

    def paths(self, s: int, t: int, shift: int, width: int) -> tuple[Ints, Floats]:
        """Rows between two switches and the share of each; `width` bounds the physical links of a path."""
        if s == t:
            return np.empty(0, dtype=np.int64), np.empty(0)
        key = (s, t, shift, width)
        if key not in self._paths:
            paths = self._all(s, t)
            if len(paths) > MAX_PATHS:
                paths = paths[chosen(len(paths), shift)]
            self._paths[key] = self._shares(paths, width)
        return self._paths[key]

    def _shares(self, paths: Ints, width: int) -> tuple[Ints, Floats]:
        """Rows of some paths and the share on each: a path gets bytes by its narrowest part."""
        narrowest = np.minimum(self._count[paths].min(axis=1), width)
        rows, where = np.unique(paths, return_inverse=True)
        each = np.repeat(narrowest / narrowest.sum(), paths.shape[1])
        shares: Floats = np.bincount(where.ravel(), weights=each).astype(np.float64)
        return rows, shares


def _some_nodes(nodes: Nodes, which: Ints) -> Nodes:
    texts = (nodes.names, nodes.kinds, nodes.hosts)
    return Nodes(*(tuple(text[at] for at in which.tolist()) for text in texts))


def _some_links(links: Links, rows: Ints) -> Links:
    columns = {key: getattr(links, key)[rows] for key in Links.__dataclass_fields__}
    return replace(links, **columns)
