"""Which nodes of a compiled graph become one kernel, and what it moves: Inductor's scheduler, in short.

1. A pointwise value that only generated code reads, and nobody later, is never in memory: whoever reads it computes it.
2. Nodes over the same elements that share data become one kernel, unless one would have to wait for the other's reader.
3. A kernel reads what others wrote, each tensor once, and writes what others read. Parts of a joined tensor (`cat`) are
   computed under masks, each with reads of its own.
4. Sums across rows that are one kernel by then are joined to sums along them, where rows are many.
5. Kernels run in the order that needs the least memory (`prestep.workloads.fusion.order`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prestep.sim.extras import lazily
from prestep.workloads.fusion.graph import (
    Node,
    Read,
    Value,
    alike,
    both_ways,
    wider,
)
from prestep.workloads.fusion.group import Functions, Group, Key, Launch, launches_of

with lazily():
    from prestep.workloads.fusion import order

#: Sources from which on a value is written: one that is read twice, any (torch._inductor.config.realize_*_threshold).
READS, ALL_READS = 4, 8


@dataclass(frozen=True)
class Joined:
    """Launches in order, and the storages that they write."""

    launches: tuple[Launch, ...]
    written: frozenset[int]


def join(
    nodes: Sequence[Node],
    needed: Iterable[Value],
    freed: Mapping[Value, float] | None = None,
) -> Joined:
    """Joins the nodes of a graph.

    ``needed`` are the values that are used after it, ``freed`` those of before that it gives back, with their bytes.
    """
    return _Graph(nodes, frozenset(needed)).joined(freed or {})


class _Graph:
    """Groups as they grow, and what is read for the values that are not in memory.

    Attributes
    ----------
    lasting
        Values that have to be in memory: needed later, or read by what stays as it is.
    computed, evaluated
        For values that are not: what they are computed from, and the functions that it takes.
    turned
        For them: elements that are read across, by the value in memory.
    group_of, touched
        The group that writes a value, those that read it.
    """

    def __init__(self, nodes: Sequence[Node], needed: frozenset[Value]) -> None:
        self.needed = needed
        self.nodes = _alive(nodes, needed)
        self.sizes = {v: size for node in self.nodes for v, size in node.writes if size}
        self.readers = Counter(r.value for node in self.nodes for r in node.reads)
        self.lasting = needed.union(
            r.value for node in self.nodes if node.space is None for r in node.reads
        )
        self.computed: dict[Value, dict[Key, float]] = {}
        self.evaluated: dict[Value, Functions] = {}
        self.turned: dict[Value, dict[Value, int]] = {}
        self.groups: list[Group] = []
        self.group_of: dict[Value, int] = {}
        self.touched: dict[Value, list[int]] = {}

    def joined(self, freed: Mapping[Value, float]) -> Joined:
        """The launches; ``freed`` are values of before that are given back, with their bytes."""
        for node in self.nodes:
            reads = dict(self._resolved(node.reads))
            functions = self._functions(node)
            turned = self._turned(node)
            if self._in_memory(node, reads):
                self._place(node, reads, functions, turned)
            else:
                self.turned.update((value, turned) for value, _ in node.writes)
                self.computed.update((value, reads) for value, _ in node.writes)
                self.evaluated.update((value, functions) for value, _ in node.writes)
        for group in self.groups:
            if group.space and group.space.across:
                self._sum_both_ways(group)
        launches: list[Launch] = []
        written: set[int] = set()
        for group in self._in_order(freed):
            lasting = list(self._writes(group))
            written.update(value[0] for value, _ in lasting)
            launches += launches_of(group, lasting)
        return Joined(tuple(launches), frozenset(written))

    def _in_memory(self, node: Node, reads: Mapping[Key, float]) -> bool:
        """Whether a node's results are written at all; of values with many sources nobody computes them twice."""
        if not node.pointwise or any(v in self.lasting for v, _ in node.writes):
            return True
        readers = sum(self.readers[value] for value, _ in node.writes)
        return len(reads) > (READS if readers > 1 else ALL_READS)

    def _functions(self, node: Node) -> Functions:
        """What a node evaluates, and what the values take that it reads and that are not in memory."""
        functions: Functions = {}
        if node.functions:
            functions[node.writes[0][0], ()] = node.functions
        for read in node.reads:
            way = (read.offset, read.part)
            for (value, ways), names in self.evaluated.get(read.value, {}).items():
                functions[value, (*ways, way)] = names
        return functions

    def _turned(self, node: Node) -> dict[Value, int]:
        """Elements that a node reads across, by the values in memory that they are computed from."""
        turned: dict[Value, int] = {}
        for read in node.reads:
            turned.update(self.turned.get(read.value, {}))
            if read.across:
                sources = (value for (value, _, _), _ in self._resolved((read,)))
                turned.update(dict.fromkeys(sources, read.across))
        return turned

    def _place(
        self,
        node: Node,
        reads: Mapping[Key, float],
        functions: Functions,
        turned: Mapping[Value, int],
    ) -> None:
        """Puts a node into the latest group that takes it, else into one of its own."""
        sources = {
            self.group_of[value] for value, _, _ in reads if value in self.group_of
        }
        number = self._host(node, reads, sources)
        if number is None:
            number = len(self.groups)
            self.groups.append(Group(number, node.space))
        group = self.groups[number]
        group.nodes.append(node)
        group.space = wider(group.space, node.space)
        group.reads.update(reads)
        group.turned.update(turned)
        group.functions.update(functions)
        group.users.update({value for value, _, _ in reads})
        group.places += self._places(node, reads, turned)
        group.sources |= sources - {number}
        for value, _ in node.writes:
            self.group_of[value] = number
        for value, _, _ in reads:
            self.touched.setdefault(value, []).append(number)

    def _places(
        self, node: Node, reads: Mapping[Key, float], turned: Mapping[Value, int]
    ) -> Iterator[tuple[Value, Value]]:
        """What a node writes, with whole values of its size that it reads in their order."""
        ways = Counter(value for value, _, _ in reads)
        for written, size in node.writes:
            for (value, offset, part), read in reads.items():
                whole = read == size and not (offset or part or value in turned)
                if whole and ways[value] == 1:
                    yield written, value

    def _host(
        self, node: Node, reads: Mapping[Key, float], sources: set[int]
    ) -> int | None:
        """The group that a node joins: it shares data with it, and runs over the same elements."""
        if node.space is None:
            return None
        sharing = {n for value, _, _ in reads for n in self.touched.get(value, ())}
        for number in sorted(sources | sharing, key=self._preference):
            space = self.groups[number].space
            if space is None or not alike(space, node.space):
                continue
            if not self._waits(sources - {number}, number):
                return number
        return None

    def _sum_both_ways(self, across: Group) -> None:
        """Joins to sums across rows the latest ones along them that share data and need not wait."""
        shared = {value for value, _, _ in across.reads}
        for along in reversed(self.groups):
            if along.space is None or across.space is None or along is across:
                continue
            if not both_ways(along.space, across.space) or along.turned:
                continue
            one, other = across.first, along.first
            waits = self._waits(across.sources - {other}, other)
            waits |= self._waits(along.sources - {one}, one)
            if not waits and any(value in shared for value, _, _ in along.reads):
                self._merge(across, along)
                return

    def _merge(self, group: Group, other: Group) -> None:
        """Makes two groups one; nothing is left in the other."""
        group.space = other.space
        group.nodes += other.nodes
        group.reads.update(other.reads)
        group.turned.update(other.turned)
        group.functions.update(other.functions)
        group.users += other.users
        group.places += other.places
        group.sources |= other.sources
        self.group_of.update((v, group.first) for n in other.nodes for v, _ in n.writes)
        for touching in self.touched.values():
            touching[:] = [group.first if n == other.first else n for n in touching]
        other.nodes, other.reads, other.space = [], {}, None
        for each in self.groups:
            if other.first in each.sources:
                each.sources = each.sources - {other.first} | {group.first}
        group.sources.discard(group.first)

    def _preference(self, number: int) -> tuple[bool, int]:
        """Groups that run along rows before those that run across, later ones first."""
        space = self.groups[number].space
        return space is not None and space.across, -number

    def _waits(self, starts: set[int], number: int) -> bool:
        """Whether one of the groups ``starts`` comes after another."""
        seen, pending = set(starts), list(starts)
        while pending:
            group = pending.pop()
            if group == number:
                return True
            fresh = self.groups[group].sources - seen
            seen |= fresh
            pending += fresh
        return False

    def _resolved(self, reads: Iterable[Read]) -> Iterator[tuple[Key, float]]:
        """What is read from memory: of values that are not there, what they are computed from."""
        for read in reads:
            part = (read.part,) if read.part else ()
            if read.value not in self.computed:
                yield (read.value, read.offset, part), read.bytes
                continue
            most = read.bytes if read.picked else float("inf")
            # Of a part of a value no more is computed than that part.
            share = min(1.0, read.bytes / self.sizes.get(read.value, read.bytes))
            for key, size in self.computed[read.value].items():
                value, offset, inner = key
                yield (value, offset, part + inner), min(size * share, most)

    def _writes(self, group: Group) -> Iterator[tuple[Value, float]]:
        """Values of a group that others read, or that are needed afterwards."""
        for node in group.nodes:
            for value, size in node.writes:
                others = any(n != group.first for n in self.touched.get(value, ()))
                if node.space is None or value in self.needed or others:
                    yield value, size

    def _in_order(self, freed: Mapping[Value, float]) -> list[Group]:
        """Groups in the order that needs the least memory."""
        groups = list(self._after_sources())
        place = {group.first: at for at, group in enumerate(groups)}
        tasks = [self._task(group, at, place) for at, group in enumerate(groups)]
        return [groups[at] for at in order.order_of(tasks, freed, self.needed)]

    def _task(self, group: Group, at: int, place: Mapping[int, int]) -> order.Task:
        """A group as a task at a place; who writes over a value comes after those that read it, and its writer."""
        writes = {value: size for node in group.nodes for value, size in node.writes}
        before = [(storage, version - 1) for storage, version in writes]
        touching = [n for value in before for n in self.touched.get(value, ())]
        touching += [self.group_of[value] for value in before if value in self.group_of]
        sources = {place[n] for n in (*group.sources, *touching)}
        reads = frozenset(value for value, _, _ in group.reads if value not in writes)
        return order.Task(reads, writes, frozenset(s for s in sources if s < at))

    def _after_sources(self) -> Iterator[Group]:
        """Groups as they come in the program, but after those that they read from."""
        done: set[int] = set()

        def visit(number: int) -> Iterator[Group]:
            if number in done:
                return
            done.add(number)
            for source in sorted(self.groups[number].sources):
                yield from visit(source)
            if self.groups[number].nodes:
                yield self.groups[number]

        for number in range(len(self.groups)):
            yield from visit(number)


def _alive(nodes: Sequence[Node], needed: frozenset[Value]) -> list[Node]:
    """Nodes whose results are needed, by others or afterwards; a compiler drops the rest."""
    used, alive = set(needed), []
    for node in reversed(nodes):
        if any(value in used for value, _ in node.writes) or not node.writes:
            alive.append(node)
            used.update(read.value for read in node.reads)
    return alive[::-1]
