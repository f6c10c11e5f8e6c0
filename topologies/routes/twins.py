"""Twins: switches with the same links to the same neighbours, which routes treat alike.

No shortest path from a switch passes a twin of it: the twin's next hop could have been taken at once. So the paths from
one of them are the paths from any other, but for their first links; and likewise the paths to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prestep.topologies.core.kinds import rank_of
from prestep.topologies.core.links import Ints, Links


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
