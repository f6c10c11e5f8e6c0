"""Which elements of a cluster are alike for a job, so that a what-if of one of them stands for all.

Colours are refined (`prestep.topologies.core.colours`) until they say all that the wiring and the layout say: two nodes
have one colour if their neighbours have the same colours over links of the same speed, and if the ranks on them have
the same pipeline stage and groups whose members have the same colours.
NCCL's trees and routes are no symmetry of the wiring, so links and hosts are told apart by the bytes on them as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prestep.sim.graph.opgraph import Chain, Comm
from prestep.sim.planning.fleet import speeds_of
from prestep.sim.planning.planned import Planned
from prestep.topologies.core.colours import rounds
from prestep.topologies.core.links import Ints


@dataclass(frozen=True, eq=False)
class Colours:
    """Colours of the nodes of a step's cluster, and the bytes on its links."""

    planned: Planned

    @cached_property
    def ranks(self) -> dict[str, int]:
        """GPU -> the rank on it."""
        return {gpu: rank for rank, gpu in enumerate(self.planned.gpus)}

    @cached_property
    def hosts(self) -> dict[str, tuple[int, ...]]:
        """Host -> the ranks in it."""
        ranks_of: dict[str, list[int]] = {}
        for rank, gpu in enumerate(self.planned.gpus):
            ranks_of.setdefault(self.planned.fabric.host_of(gpu), []).append(rank)
        return {host: tuple(ranks) for host, ranks in ranks_of.items()}

    def stages(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Pipeline stages of some ranks; none where the job has one."""
        layout = self.planned.lowered.layout
        stages = {layout.where(rank)[1] for rank in ranks} if layout.pp > 1 else set()
        return tuple(sorted(stages))

    def kind(self, link: str) -> str:
        return str(self.planned.fabric.links.kind[self._row[link]])

    def of_node(self, name: str) -> Hashable:
        return int(self._nodes[self.planned.fabric.node_index(name)])

    def of_host(self, host: str) -> Hashable:
        """Colours of its nodes: hosts are alike if all in them is."""
        inside = self._inside.get(host, ())
        return tuple(sorted(int(self._nodes[node]) for node in inside))

    def of_host_links(self, host: str) -> Hashable:
        """What tells links of hosts apart: beside what they join, the bytes on them."""
        loads = sorted(
            self._loads[row] for row in self._rows_of.get(host, ()) if self._loads[row]
        )
        inside = (int(self._nodes_apart[node]) for node in self._inside.get(host, ()))
        return tuple(sorted(inside)), tuple(loads)

    def of_link(self, name: str) -> Hashable:
        """Both directions of a cable: what it joins, how fast it is, and the bytes on it."""
        links, nodes = self.planned.fabric.links, self._nodes_apart
        row = self._row[name]
        back = links.index.get((links.dst[row], links.src[row]), row)
        src, dst = self.planned.fabric.ends
        ways = [
            (int(nodes[src[at]]), int(nodes[dst[at]]), int(self._speeds[at]), self._loads[at])
            for at in (row, back)
        ]  # fmt: skip
        return tuple(sorted(ways))

    @cached_property
    def _row(self) -> dict[str, int]:
        """Link by its name -> its row."""
        links = self.planned.fabric.links
        return {links.name(row): row for row in range(len(links))}

    @cached_property
    def _inside(self) -> dict[str, list[int]]:
        """Host -> positions of its nodes."""
        inside: dict[str, list[int]] = {}
        for node, host in enumerate(self.planned.fabric.nodes.hosts):
            inside.setdefault(host, []).append(node)
        return inside

    @cached_property
    def _rows_of(self) -> dict[str, list[int]]:
        """Host -> the links in it and at it."""
        hosts = self.planned.fabric.nodes.hosts
        rows_of: dict[str, list[int]] = {}
        for row, ends in enumerate(zip(*self._ends, strict=True)):
            for host in {hosts[end] for end in ends} - {""}:
                rows_of.setdefault(host, []).append(row)
        return rows_of

    @property
    def _ends(self) -> tuple[list[int], list[int]]:
        src, dst = self.planned.fabric.ends
        return src.tolist(), dst.tolist()

    @cached_property
    def _speeds(self) -> Ints:
        """Links that are as fast and far as each other have one number."""
        links = self.planned.fabric.links
        columns = (links.kind, links.bandwidth, links.latency, links.count)
        return _numbered(zip(*(column.tolist() for column in columns), strict=True))

    @cached_property
    def _loads(self) -> list[float]:
        """Seconds of bytes that a step puts on every link, rounded; groups that are not listed put none on any."""
        planned = self.planned
        seconds = np.zeros(len(planned.fabric.links))
        for comm, plan in zip(planned.graph.comms, planned.plans, strict=True):
            if comm.everywhere <= len(comm.groups):
                busy = comm.size * plan.usage / planned.bandwidth[plan.links]
                seconds[plan.links] += busy
        return [float(f"{second:.9g}") for second in seconds.tolist()]

    @cached_property
    def _nodes(self) -> Ints:
        """Of every node of the fabric."""
        return self._refined([*self._first(), *self._bonds[0]])

    @cached_property
    def _nodes_apart(self) -> Ints:
        """The same with simulated ranks told apart from those that they stand for.

        A cable is that of one rank: whether it is the one that is simulated for its group shows in a step (by half
        a percent), though in the wiring it does not.
        """
        shown = {self.planned.gpus[p.rank] for p in self.planned.graph.programs}
        names = self.planned.fabric.nodes.names
        apart = [name in shown for name in names] + [False] * len(self._bonds[0])
        first = (*self._first(), *self._bonds[0])
        return self._refined(list(zip(first, apart, strict=True)))

    def _refined(self, first: Sequence[Hashable]) -> Ints:
        src, dst = self.planned.fabric.ends
        speeds, (_, members, bonds) = self._speeds, self._bonds
        away = int(speeds.max(initial=0)) + 1  # labels of the other direction
        # Whom it belongs to is an edge of its own kind, both ways.
        sources = np.concatenate([src, dst, members, bonds])
        targets = np.concatenate([dst, src, bonds, members])
        labels = np.concatenate(
            [speeds, speeds + away, np.full(len(members) + len(bonds), 2 * away)]
        )
        *_, finest = rounds(_numbered(first), sources, targets, labels)
        return finest[: len(self.planned.fabric.nodes)]

    def _first(self) -> Iterator[Hashable]:
        """What a node is by itself: its kind, and of a GPU its stage and speed."""
        planned = self.planned
        fabric, slow = planned.fabric, planned.machine.faults.slow_rank
        speeds = (
            speeds_of(fabric, planned.gpu, fabric.gpus) if fabric.gpu_changes else ()
        )
        speed = dict(zip(fabric.gpus, speeds, strict=False))
        for name, kind in zip(fabric.nodes.names, fabric.nodes.kinds, strict=True):
            rank = self.ranks.get(name)
            stage = -1 if rank is None else planned.lowered.layout.where(rank)[1]
            yield kind, stage, speed.get(name), rank is not None and rank == slow

    @cached_property
    def _bonds(self) -> tuple[list[Hashable], Ints, Ints]:
        """Hosts and groups of ranks as nodes of their own: what they are, and pairs (member, bond)."""
        kinds: list[Hashable] = []
        pairs: list[tuple[int, int]] = []
        start = len(self.planned.fabric.nodes)
        for kind, members in (*self._in_hosts(), *self._groups()):
            pairs += [(member, start + len(kinds)) for member in members]
            kinds.append(kind)
        columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return kinds, columns[:, 0], columns[:, 1]

    def _in_hosts(self) -> Iterator[tuple[Hashable, Sequence[int]]]:
        for host, nodes in self._inside.items():
            if host:
                yield "host", nodes

    def _groups(self) -> Iterator[tuple[Hashable, Sequence[int]]]:
        """Ranks that belong together: along the axes of the layout, and in communicators that are all listed."""
        planned = self.planned
        at = planned.fabric.positions(planned.gpus)
        grid = np.array([planned.lowered.layout.where(r) for r in range(len(at))])
        for axis, name in enumerate(("dp", "pp", "tp")):
            others = np.delete(grid, axis, axis=1)
            yield from _together(
                f"along {name}", at, _numbered(map(tuple, others.tolist()))
            )
        for name, groups in self._communicators().items():
            for group in groups:
                yield name, at[list(group)].tolist()

    def _communicators(self) -> dict[str, set[tuple[int, ...]]]:
        """Groups by axis, of axes whose groups have every rank; others are folded, and layout says as much."""
        groups_of: dict[str, set[tuple[int, ...]]] = {}
        for comm in _comms(self.planned):
            groups_of.setdefault(comm.axis, set()).update(
                tuple(sorted(group)) for group in comm.groups
            )
        world = len(self.planned.gpus)
        return {
            axis: groups
            for axis, groups in groups_of.items()
            if len({rank for group in groups for rank in group}) == world
        }


def _comms(planned: Planned) -> Iterator[Comm]:
    """Of the step, and of what its chains repeat."""
    yield from planned.graph.comms
    for kernel in planned.graph.kernels:
        if isinstance(kernel, Chain):
            yield from kernel.graph.comms


def _together(kind: str, at: Ints, groups: Ints) -> Iterator[tuple[str, Sequence[int]]]:
    """Positions with the same number."""
    order = np.argsort(groups, kind="stable")
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    for members in np.split(at[order], cuts):
        yield kind, members.tolist()


def _numbered(values: Iterable[Hashable]) -> Ints:
    """Equal values have equal numbers, from 0."""
    numbers: dict[Hashable, int] = {}
    return np.array(
        [numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64
    )
