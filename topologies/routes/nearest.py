"""The nearest nodes of a kind: found within the first host of a pattern where nothing outside can be as near."""

from __future__ import annotations

import numpy as np

from prestep.topologies.core.links import Ints, Nodes
from prestep.topologies.routes.router import Router
from prestep.topologies.routes.stubs import FAR, Pattern, Stubs


class Nearest:
    """`Router.nearest` of a cluster's hosts; `inner` has the routes within the first host of each pattern."""

    def __init__(
        self, nodes: Nodes, stubs: Stubs, inner: dict[Pattern, Router]
    ) -> None:
        self._nodes, self._stubs, self._inner = nodes, stubs, inner
        self._entries: dict[str, int] = {}

    def of(self, src: int, kind: str) -> Ints | None:
        """The nearest nodes of a kind, ascending; None where they may lie outside of the node's host."""
        stubs = self._stubs
        if stubs.pattern[src] < 0:
            return None
        host = stubs.patterns[int(stubs.pattern[src])]
        start = int(stubs.local[src])
        found = self._inner[host].nearest(start, kind)
        to_door = int(host.away[0, start].min(initial=FAR))
        outside = to_door + self._entry(kind)
        if not len(found) or self._inner[host].hops(start)[found[0]] >= outside:
            return None
        near: Ints = host.nodes[stubs.member[src]][found]
        return near

    def _entry(self, kind: str) -> int:
        """The fewest hops from a host's door to a node of a kind outside."""
        if kind not in self._entries:
            # A switch, or a host that is no dead end, may be next to the door.
            free = np.flatnonzero(self._stubs.pattern < 0).tolist()
            beside = any(self._nodes.kinds[at] == kind for at in free)
            hosts = [_within(host, kind) for host in self._stubs.patterns]
            self._entries[kind] = 1 if beside else min(hosts, default=FAR) + 2
        return self._entries[kind]


def _within(host: Pattern, kind: str) -> int:
    """The fewest hops from a door of a host to a node of a kind in it."""
    each = (
        int(host.home[0, at].min(initial=FAR))
        for at, other in enumerate(host.kinds)
        if other == kind
    )
    return min(each, default=FAR)
