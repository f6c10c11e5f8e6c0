"""Routes: breadth-first, deterministic, found when they are first needed and cached.

A path goes through switches, CPUs and NICs, never through a GPU, a memory or a disk. Paths are compared by number of
hops, then by their worst kind of link as NCCL does (NVLink before PCIe before sockets before the network), so that two
GPUs under one PCIe switch still talk over NVLink, then by the CPUs they pass (a NIC under the GPU's own PCIe switch is
nearer than one beyond the CPU). To another host a path without a CPU is better however long it is. What is left are
equal-cost paths, which share the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from prestep.sim.errors import InputError, Mistake
from prestep.topologies.core.kinds import ENDPOINTS, NETWORK, rank_of
from prestep.topologies.core.links import Floats, Ints, Links, Nodes
from prestep.topologies.routes.relays import Relays

_NO_CPU = ENDPOINTS | {"cpu"}

FAR = 1 << 30  # hops to what cannot be reached
Onward = dict[int, list[int]]  # by node: the rows that lead on along shortest paths


Paths = Sequence[tuple[Ints, float]]

# Equal-cost paths kept for one pair: a fat tree has one per spine, and a hash spreads no wider in practice.
MAX_PATHS = 64
STRIDE = 7919  # a prime above the numbers of switches in a tier


def chosen(total: int, shift: int) -> list[int]:
    """Returns which of `total` paths are used; `shift`, a number derived from the two ends, varies the choice."""
    if total <= MAX_PATHS:
        return list(range(total))
    # One from every stretch of equal length, at a place of its own: even at the first switch and at the last.
    step = total // MAX_PATHS
    return [
        at * total // MAX_PATHS + (shift + at * STRIDE) % step
        for at in range(MAX_PATHS)
    ]


def summed(paths: Paths) -> tuple[Ints, Floats]:
    """Adds paths up by link: rows in link order, and the share of the bytes on each."""
    load: dict[int, float] = {}
    for path, share in paths:
        for row in path.tolist():
            load[row] = load.get(row, 0.0) + share
    rows = sorted(load)
    return np.array(rows, dtype=np.int64), np.array(
        [load[row] for row in rows], dtype=np.float64
    )


@dataclass(eq=False)
class _Ball:
    """The nodes around one end of a path, grown hop by hop.

    Attributes
    ----------
    edge
        Nodes that the last hop reached.
    hops
        Of every node in the ball, from its middle.
    links, ends
        By node the rows that lead away from the middle, and by row the node to which it leads.
    rows
        By node the rows by which it is reached.
    """

    edge: list[int]
    hops: dict[int, int]
    links: list[list[int]]
    ends: list[int]
    rows: Onward = field(default_factory=dict)

    def grow(
        self, kinds: tuple[str, ...], closed: frozenset[str], both: tuple[int, int]
    ) -> None:
        """One hop more; nodes of the `closed` kinds are left out, except for the two ends of the path."""
        hops, ends, rows = self.hops, self.ends, self.rows
        grown: list[int] = []
        for node in self.edge:
            away = hops[node] + 1
            for row in self.links[node]:
                end = ends[row]
                if end not in hops:
                    if kinds[end] in closed and end not in both:
                        continue
                    hops[end] = away
                    grown.append(end)
                if hops[end] == away:
                    rows.setdefault(end, []).append(row)
        self.edge = grown


class Router:
    """Routes over the rows of `links`; nodes are positions in `nodes`."""

    def __init__(self, nodes: Nodes, links: Links) -> None:
        self._nodes, self._links = nodes, links
        self._paths: dict[tuple[int, int], list[tuple[Ints, float]]] = {}
        self.spreads: dict[tuple[int, int], tuple[Ints, Floats]] = {}
        self._hops: dict[int, Ints] = {}
        self._of_kind: dict[str, npt.NDArray[np.bool_]] = {}

    @property
    def ends(self) -> tuple[Ints, Ints]:
        """Positions of the nodes that each row leaves and enters."""
        return self._links.ends(self._nodes)

    @cached_property
    def relays(self) -> Relays:
        """Ways of two hops, for whole columns of pairs; for few nodes."""
        return Relays(self._nodes, self._links)

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
    def _adjacency(self) -> tuple[Ints, Ints, Ints]:
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
        if src not in self._hops:
            self._hops[src] = self._flooded(src)
        return self._hops[src]

    def _flooded(self, src: int) -> Ints:
        hops = np.full(len(self._nodes), FAR, dtype=np.int64)
        hops[src] = 0
        edge = np.array([src])
        step = 0
        while len(edge):
            step += 1
            met = self._beyond(edge)
            hops[met[hops[met] > step]] = step
            edge = np.flatnonzero((hops == step) & self._forwards)
        return hops

    def _beyond(self, nodes: Ints) -> Ints:
        """The nodes at the other ends of all rows that leave some nodes."""
        starts, counts, ends = self._adjacency
        many = counts[nodes]
        first = np.repeat(starts[nodes] - np.cumsum(many) + many, many)
        beyond: Ints = ends[first + np.arange(many.sum())]
        return beyond

    def paths_of(self, hops: Ints) -> Ints:
        """Number of paths with the fewest hops to every node, whatever their links, by the `hops` from one of them."""
        src, dst = self.ends
        paths: Ints = (hops == 0).astype(np.int64)
        passable = self._forwards[src] & (hops[dst] < FAR)
        onward = np.flatnonzero((hops[dst] == hops[src] + 1) & passable)
        steps = hops[dst[onward]]
        for step in range(1, int(steps.max(initial=0)) + 1):
            rows = onward[steps == step]
            np.add.at(paths, dst[rows], paths[src[rows]])
        return paths

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
        self, onward: Onward, src: int, dst: int
    ) -> tuple[Onward, dict[int, int], bool]:
        """`_ways` of those among `onward`, and whether they leave the host by way of a CPU."""
        back = self._backwards(onward, src, dst)
        worst = self._worst_link(onward, back, dst)[src]
        best, ways, cpus = self._fewest_cpus(onward, back, dst, worst)
        return best, ways, worst == NETWORK and cpus[src] > 0

    def _backwards(self, onward: Onward, src: int, dst: int) -> list[int]:
        """Nodes on the paths, those nearest to `dst` first; `dst` itself is left out."""
        ends = self._dst
        layers = [[src]]
        while layers[-1] != [dst]:
            following = [ends[row] for node in layers[-1] for row in onward[node]]
            layers.append(list(dict.fromkeys(following)))
        return [node for layer in reversed(layers[:-1]) for node in layer]

    def _worst_link(self, onward: Onward, back: list[int], dst: int) -> dict[int, int]:
        """By node: the rank of the worst link on the best path from there."""
        rank, ends = self._rank, self._dst
        worst = {dst: 0}
        for node in back:
            worst[node] = min(max(rank[row], worst[ends[row]]) for row in onward[node])
        return worst

    def _fewest_cpus(
        self, onward: Onward, back: list[int], dst: int, worst: int
    ) -> tuple[Onward, dict[int, int], dict[int, int]]:
        """By node: rows that pass the fewest CPUs, without a link beyond `worst`; number of those paths; CPUs."""
        best: Onward = {}
        ways, cpus = {dst: 1}, {dst: 0}
        for node in back:
            passed = self._cpus_passed(sorted(onward[node]), cpus, worst)
            if not passed:
                continue
            fewest = min(passed.values())
            rows = [row for row, count in passed.items() if count == fewest]
            cpus[node], best[node] = fewest, rows
            ways[node] = sum(ways[self._dst[row]] for row in rows)
        return best, ways, cpus

    def _cpus_passed(
        self, rows: list[int], cpus: dict[int, int], worst: int
    ) -> dict[int, int]:
        """CPUs on the way by each of some rows, where `cpus` has those from the nodes that they enter."""
        ends, kinds = self._dst, self._nodes.kinds
        passed: dict[int, int] = {}
        for row in rows:
            end = ends[row]
            if self._rank[row] <= worst and end in cpus:
                passed[row] = cpus[end] + (kinds[end] == "cpu")
        return passed

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

    def _onward(self, src: int, dst: int, closed: frozenset[str] = ENDPOINTS) -> Onward:
        """The rows that leave each node on the shortest paths: balls grow around both ends until they touch.

        No path leads through nodes of the `closed` kinds.
        """
        front = _Ball([src], {src: 0}, self._leaving, self._dst)
        back = _Ball([dst], {dst: 0}, self._entering, self._src)
        meeting: list[int] = []
        while not meeting:
            smaller = len(front.edge) <= len(back.edge)
            ball, other = (front, back) if smaller else (back, front)
            ball.grow(self._nodes.kinds, closed, (src, dst))
            meeting = [node for node in ball.edge if node in other.hops]
            if not ball.edge:
                raise InputError(self._no_path(src, dst))
        self._add_front(back.rows, front.rows, meeting)
        return back.rows

    def _no_path(self, src: int, dst: int) -> Mistake:
        names = self._nodes.names
        expected = "a link between their parts of the cluster"
        return Mistake(
            "routing", "", f"no path from {names[src]} to {names[dst]}", expected
        )

    def _add_front(self, onward: Onward, reached: Onward, meeting: list[int]) -> None:
        """Adds the rows from the source to where the balls touch; `reached` has them by the node they enter."""
        seen, todo = set(meeting), list(meeting)
        while todo:
            for row in reached.get(todo.pop(), ()):
                node = self._src[row]
                onward.setdefault(node, []).append(row)
                if node not in seen:
                    seen.add(node)
                    todo.append(node)

    def lines(self, src: int, dst: int) -> Ints:
        """All equally good paths, counted in link order: one in each line."""
        onward, _ = self._ways(src, dst)
        lines = {dst: np.empty((1, 0), dtype=np.int64)}
        # Those nearest to the end come first.
        for node, rows in onward.items():
            rest = [lines[self._dst[row]] for row in rows]
            first = np.repeat(rows, list(map(len, rest)))
            lines[node] = np.column_stack([first, np.concatenate(rest)])
        return lines[src]

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

    def spread(self, src: int, dst: int) -> tuple[Ints, Floats]:
        """Rows in link order, and the bytes each carries per byte sent."""
        key = (src, dst)
        if key not in self.spreads:
            self.spreads[key] = summed(self.routes(src, dst))
        return self.spreads[key]

    def nearest(self, src: int, kind: str) -> Ints:
        """The reachable nodes of a kind with the fewest hops, ascending; empty when there is none."""
        if kind not in self._of_kind:
            kinds = self._nodes.kinds
            self._of_kind[kind] = np.array([one == kind for one in kinds], dtype=bool)
        wanted = self._of_kind[kind]
        met = seen = np.array([src])
        # Hop by hop, to the first that are of the kind: what is near a GPU is in its host, however large the cluster.
        while len(met):
            if wanted[met].any():
                return np.unique(met[wanted[met]])
            # Thousands of NICs behind a leaf count only where no node of the kind was as near.
            met = np.unique(met[self._forwards[met] | (met == src)])
            seen = np.concatenate([seen, met])
            beyond = self._beyond(met)
            met = beyond[~np.isin(beyond, seen)]
        return met
