"""Ways of two hops inside a host, for whole columns of pairs: over NVSwitches, a PCIe switch or a CPU.

The router finds the same ones pair by pair. Between the 72 GPUs of a rack there are 5,112 pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prestep.topologies.core.kinds import ENDPOINTS, NETWORK, rank_of
from prestep.topologies.core.links import (
    Bools,
    Floats,
    Ints,
    Links,
    Nodes,
    distinct,
    groups,
)


class Relays:
    """The links of a host by the nodes at both ends, of which one passes bytes on."""

    def __init__(self, nodes: Nodes, links: Links) -> None:
        src, dst = links.ends(nodes)
        kinds = np.array(nodes.kinds)
        middles = np.flatnonzero(~np.isin(kinds, sorted(ENDPOINTS)))
        self._pairs = np.unique(src * len(nodes) + dst)
        # With several links between two nodes there is more than one way over a node.
        self._single = len(self._pairs) == len(src)
        self._out = _rows(src, dst, len(nodes))[:, middles]
        self._into = _rows(dst, src, len(nodes))[:, middles]
        self._cpu: Ints = (kinds[middles] == "cpu").astype(np.int64)
        self._rank, self._count = rank_of(links.kind), links.count

    def find(
        self, src: Ints, dst: Ints, most: int
    ) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Yields pairs whose shortest ways have two hops: their numbers, links, and the share of the bytes on each.

        Pairs with more than so many ways are left out.
        """
        if not self._single:
            return
        out, into = self._out[src], self._into[dst]
        over: Bools = (out >= 0) & (into >= 0)
        # The ways whose worst link is of the best kind, and of these those with the fewest CPUs.
        for column in (np.maximum(self._rank[out], self._rank[into]), self._cpu):
            worth = np.where(over, column, NETWORK)
            best = worth.min(axis=1, initial=NETWORK)
            over &= worth == best[:, None]
        ways = over.sum(axis=1)
        apart = ~np.isin(src * len(self._out) + dst, self._pairs) & (src != dst)
        good = np.flatnonzero(apart & (ways > 0) & (ways <= most))
        width = np.where(over, np.minimum(self._count[out], self._count[into]), 0)[good]
        first, kind = distinct(width)
        for number, which in groups(kind):
            taken = np.flatnonzero(width[first[number]])
            share = width[first[number], taken] / width[first[number]].sum()
            some = good[which]
            rows = np.hstack([out[some][:, taken], into[some][:, taken]])
            yield some, rows, np.tile(share, 2)


def _rows(near: Ints, far: Ints, nodes: int) -> Ints:
    """The row between every two nodes, by the node at its near end and the one at its far end; -1: there is none."""
    rows = np.full((nodes, nodes), -1, dtype=np.int64)
    rows[near, far] = np.arange(len(near))
    return rows
