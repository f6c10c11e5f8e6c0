"""Routes: breadth-first, deterministic, made when asked for and kept.

A path goes through switches, CPUs and NICs, never through a GPU, a memory or a disk. Paths are compared by number of
hops, then by their worst kind of link as NCCL does (NVLink before PCIe before sockets before the network), so that two
GPUs under one PCIe switch still talk over NVLink, then by the CPUs they pass (a NIC under the GPU's own PCIe switch is
nearer than one beyond the CPU). To another host a path without a CPU is better however long it is. What is left are
equal-cost paths, which share the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sim.errors import InputError, Mistake
from topologies.core.kinds import ENDPOINTS, NETWORK, rank_of
from topologies.core.links import Floats, Ints, Links, Nodes
from topologies.routes.paths import STRIDE, chosen, summed

_NO_CPU = ENDPOINTS | {"cpu"}

FAR = 1 << 30  # hops to what cannot be reached


class Router:
    """Routes over the rows of `links`; nodes are positions in `nodes`."""

    def __init__(self, nodes: Nodes, links: Links) -> None:
        self._nodes, self._links = nodes, links
        self._paths: dict[tuple[int, int], list[tuple[Ints, float]]] = {}
        self._spreads: dict[tuple[int, int], tuple[Ints, Floats]] = {}

    @property
    def ends(self) -> tuple[Ints, Ints]:
        """Positions of the nodes that each row leaves and enters."""
        return self._links.ends(self._nodes)

    @cached_property
    def _src(self) -> list[int]:
        return list(self.ends[0].tolist())

    @cached_property
    def _dst(self) -> list[int]:
        return list(self.ends[1].tolist())

    @cached_property
    def _rank(self) -> list[int]:
        return list(rank_of(self._links.kind).tolist())

    @cached_property
    def _leaving(self) -> list[list[int]]:
        """Rows that leave each node, in link order: the source of all tie-breaking."""
        leaving: list[list[int]] = [[] for _ in self._nodes.names]
        for row, src in enumerate(self._src):
            leaving[src].append(row)
        return leaving

    @cached_property
    def _entering(self) -> list[list[int]]:
        """Rows that enter each node, in link order."""
        entering: list[list[int]] = [[] for _ in self._nodes.names]
        for row, dst in enumerate(self._dst):
            entering[dst].append(row)
        return entering

    @cached_property
    def _fan(self) -> tuple[Ints, Ints, Ints]:
        """Rows that leave each node, as starts, counts and the nodes that they enter."""
        src, dst = self.ends
        order = np.argsort(src, kind="stable")
        count = np.bincount(src, minlength=len(self._nodes))
        return np.cumsum(count) - count, count, dst[order]

    @cached_property
    def _forwards(self) -> npt.NDArray[np.bool_]:
        return np.array(
            [kind not in ENDPOINTS for kind in self._nodes.kinds], dtype=bool
        )

    def hops(self, src: int) -> Ints:
        """Hops from `src` to every node; very many to one that it cannot reach."""
        starts, count, ends = self._fan
        hops = np.full(len(self._nodes), FAR, dtype=np.int64)
        hops[src], edge, step = 0, np.array([src]), 0
        while len(edge):
            step += 1
            many = count[edge]
            rows = np.repeat(starts[edge] - np.cumsum(many) + many, many) + np.arange(
                many.sum()
            )
            met = ends[rows]
            hops[met[hops[met] > step]] = step
            edge = np.flatnonzero((hops == step) & self._forwards)
        return hops

    def _shortest(self, src: int, dst: int) -> list[list[int]]:
        """Paths with the fewest hops whose worst link is of the best kind, with the fewest CPUs.

        Of more than `MAX_PATHS`, as many spread evenly over all of them, so that no switch is favoured: which ones
        depends on the two ends.
        """
        if src == dst:
            return [[]]
        onward, ways = self._ways(src, dst)
        return [
            self._path(src, dst, onward, ways, at)
            for at in chosen(ways[src], src * STRIDE + dst)
        ]

    def _ways(self, src: int, dst: int) -> tuple[dict[int, list[int]], dict[int, int]]:
        """Rows that lead on along the best of the shortest paths, in link order, and how many of those paths remain."""
        onward, ways, detour = self._best(self._onward(src, dst), src, dst)
        if detour and self._nodes.kinds[src] == self._nodes.kinds[dst] == "gpu":
            # Over three tiers a NIC beyond the CPU may save a hop in the network, but a GPU leaves by the nearest one.
            with suppress(InputError):
                onward, ways, _ = self._best(self._onward(src, dst, _NO_CPU), src, dst)
        return onward, ways

    def _best(
        self, onward: dict[int, list[int]], src: int, dst: int
    ) -> tuple[dict[int, list[int]], dict[int, int], bool]:  # fmt: skip
        """`_ways` of those among `onward`, and whether they leave the host by way of a CPU."""
        layers = [[src]]
        while layers[-1] != [dst]:
            layers.append(
                list(
                    dict.fromkeys(
                        self._dst[row] for node in layers[-1] for row in onward[node]
                    )
                )
            )
        back = [node for layer in reversed(layers[:-1]) for node in layer]
        worst = {dst: 0}
        for node in back:
            worst[node] = min(
                max(self._rank[row], worst[self._dst[row]]) for row in onward[node]
            )
        cpus, ways, kept = {dst: 0}, {dst: 1}, {}  # type: tuple[dict[int, int], dict[int, int], dict[int, list[int]]]
        for node in back:
            passed = {
                row: cpus[self._dst[row]] + (self._nodes.kinds[self._dst[row]] == "cpu")
                for row in sorted(onward[node])
                if self._rank[row] <= worst[src] and self._dst[row] in cpus
            }
            if passed:
                cpus[node] = min(passed.values())
                kept[node] = [
                    row for row, count in passed.items() if count == cpus[node]
                ]
                ways[node] = sum(ways[self._dst[row]] for row in kept[node])
        return kept, ways, worst[src] == NETWORK and cpus[src] > 0

    def _path(
        self,
        src: int,
        dst: int,
        onward: dict[int, list[int]],
        ways: dict[int, int],
        at: int,
    ) -> list[int]:
        """The path of number `at` when all are counted in link order."""
        path: list[int] = []
        node = src
        while node != dst:
            for row in onward[node]:
                if at < ways[self._dst[row]]:
                    break
                at -= ways[self._dst[row]]
            path.append(row)
            node = self._dst[row]
        return path

    def _onward(
        self, src: int, dst: int, closed: frozenset[str] = ENDPOINTS
    ) -> dict[int, list[int]]:
        """The rows that leave each node on the shortest paths: balls grow around both ends until they touch.

        No path leads through nodes of the `closed` kinds.
        """
        ahead, behind = {src: 0}, {dst: 0}
        reached: dict[
            int, list[int]
        ] = {}  # rows by which a node of the front ball is reached
        onward: dict[
            int, list[int]
        ] = {}  # rows that lead on from a node of the back ball
        front, back = [src], [dst]
        meeting: list[int] = []
        while not meeting:
            if len(front) <= len(back):
                front = self._grow(
                    front, ahead, self._leaving, self._dst, reached, (src, dst), closed
                )
                meeting = [node for node in front if node in behind]
            else:
                back = self._grow(
                    back, behind, self._entering, self._src, onward, (src, dst), closed
                )
                meeting = [node for node in back if node in ahead]
            if not front or not back:
                found = (
                    f"no path from {self._nodes.names[src]} to {self._nodes.names[dst]}"
                )
                raise InputError(
                    Mistake(
                        "routing",
                        "",
                        found,
                        "a link between their parts of the cluster",
                    )
                )
        seen, todo = set(meeting), list(meeting)
        while todo:  # from where the balls touch back to the source
            for row in reached.get(todo.pop(), ()):
                node = self._src[row]
                onward.setdefault(node, []).append(row)
                if node not in seen:
                    seen.add(node)
                    todo.append(node)
        return onward

    def _grow(
        self, edge: list[int], known: dict[int, int], links: list[list[int]], ends: list[int],
        rows: dict[int, list[int]], both: tuple[int, int], closed: frozenset[str],
    ) -> list[int]:  # fmt: skip
        """One hop more around an end; `rows` collects how each new node hangs together with the one before."""
        grown: list[int] = []
        for node in edge:
            hops = known[node] + 1
            for row in links[node]:
                end = ends[row]
                if end not in known:
                    # What no path leads through is left out, except for the two ends of this one.
                    if self._nodes.kinds[end] in closed and end not in both:
                        continue
                    known[end] = hops
                    grown.append(end)
                if known[end] == hops:
                    rows.setdefault(end, []).append(row)
        return grown

    @cached_property
    def alike(self) -> bool:
        """Whether no path is better than another of as many hops: only network links, and no CPU on the way."""
        return (
            rank_of(self._links.kind).min(initial=NETWORK) == NETWORK
            and "cpu" not in self._nodes.kinds
        )

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        """Rows sorted by their two ends, and those as one number each."""
        src, dst = self.ends
        key = src * len(self._nodes) + dst
        order = np.argsort(key, kind="stable")
        return order, key[order]

    def over_one(self, src: int, dst: int) -> Ints:
        """All paths of two hops, in link order, where paths are `alike`: one line (two rows) for each node between."""
        order, key = self._pairs
        starts, count, ends = self._fan
        middle = ends[starts[src] : starts[src] + count[src]]
        middle = middle[self._forwards[middle]]
        size = len(self._nodes)
        second = np.searchsorted(key, middle * size + dst)
        good = key[np.minimum(second, len(key) - 1)] == middle * size + dst
        first = order[np.searchsorted(key, src * size + middle[good])]
        lines: Ints = np.stack([first, order[second[good]]], axis=1)
        return lines[np.argsort(lines[:, 0])]

    def numbered(self, src: int, dst: int) -> tuple[int, Callable[[int], list[int]]]:
        """How many equally good paths there are, and a function that gives the one of a number, as rows."""
        onward, ways = self._ways(src, dst)
        return ways[src], lambda at: self._path(src, dst, onward, ways, at)

    def routes(self, src: int, dst: int) -> list[tuple[Ints, float]]:
        """Equal-cost paths, best first, each with its share of the bytes (they add up to 1)."""
        key = (src, dst)
        if key not in self._paths:
            links = self._links
            paths = [
                np.array(path, dtype=np.int64) for path in self._shortest(src, dst)
            ]
            width = [int(links.count[path].min(initial=1 << 30)) for path in paths]
            latency = [float(links.latency[path].sum()) for path in paths]
            order = sorted(
                range(len(paths)),
                key=lambda at: (latency[at], -width[at], paths[at].tolist()),
            )
            self._paths[key] = [(paths[at], width[at] / sum(width)) for at in order]
        return self._paths[key]

    def route(self, src: int, dst: int) -> Ints:
        """The first of `routes`."""
        return self.routes(src, dst)[0][0]

    def spread(self, src: int, dst: int) -> tuple[Ints, Floats]:
        """Rows in link order, and the bytes each carries per byte sent."""
        key = (src, dst)
        if key not in self._spreads:
            self._spreads[key] = summed(self.routes(src, dst))
        return self._spreads[key]

    def nearest(self, src: int, kind: str) -> int | None:
        """The reachable node of a kind with the fewest hops, the first on a tie; None when there is none."""
        if kind not in self._of_kind:
            found = [at for at, other in enumerate(self._nodes.kinds) if other == kind]
            self._of_kind[kind] = np.array(found, dtype=np.int64)
        nodes, hops = self._of_kind[kind], self.hops(src)
        if not len(nodes) or hops[nodes].min() >= FAR:
            return None
        return int(nodes[hops[nodes].argmin()])

    @cached_property
    def _of_kind(self) -> dict[str, Ints]:
        return {}
