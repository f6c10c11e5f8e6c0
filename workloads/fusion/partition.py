"""What the forward part of a compiled function keeps for its backward, and what backward computes again.

AOTAutograd cuts the joint graph where the fewest bytes cross: a minimum cut between what must be kept and what
backward reads (torch/_functorch/partitioners.py, PyTorch 2.11). Its rules are ours: products, random numbers,
statistics of rows and joined tensors are not computed again, neither is what backward hands to a product, nor what
lies behind one.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from prestep.workloads.fusion.graph import Node, Value

#: A byte weighs so much more for every operation that lies between it and backward, up to FARTHEST of them.
FARTHER, FARTHEST = 1.1, 100
#: A value that is in no memory otherwise weighs so much more than one that is.
WRITTEN_FOR_IT = 2.0
#: Results that read so many times their own bytes are statistics, which cost little to keep.
STATISTIC = 4.0
#: Operations whose results are joined to nothing that reads them.
ALONE = ("cat", "stack", "embedding")
SOURCE, SINK = "source", "sink"


@dataclass(frozen=True)
class Partition:
    """A cut between forward and backward.

    Attributes
    ----------
    kept
        Values that backward reads of what forward had or made.
    again
        Nodes of forward that backward runs once more, in order.
    made
        What is kept of the values that forward makes, with bytes; the others are its inputs, which others have too.
    """

    kept: frozenset[Value]
    again: tuple[Node, ...]
    made: Mapping[Value, float]


def partition(
    forward: Sequence[Node],
    backward: Sequence[Node],
    lasting: Collection[Value],
    keeps: Collection[int] | None = None,
    results: Collection[Value] = (),
) -> Partition:
    """The cut; ``lasting`` are values that are in memory all the time: weights; ``results`` are written anyway.

    ``keeps``: storages that the program keeps (activation checkpointing), so that all else is computed again.
    """
    wanted = _read_before_written(backward)
    graph = _Joint(forward, backward, lasting, frozenset(results))
    if keeps is not None:
        kept = graph.stated(wanted, keeps)
    else:
        kept = _cut(graph, wanted) | (wanted & set(lasting))
    again = _between(graph, wanted, kept)
    made = {value: graph.size[value] for value in kept if value in graph.made_by}
    return Partition(frozenset(kept), tuple(forward[at] for at in sorted(again)), made)


class _Joint:
    """Forward and what backward reads of it.

    Attributes
    ----------
    made_by
        The place in forward of the node that writes a value.
    readers
        Places in forward of the nodes that read a value.
    distance
        Operations from a value to the nearest one of backward.
    """

    def __init__(
        self,
        forward: Sequence[Node],
        backward: Sequence[Node],
        lasting: Collection[Value],
        results: frozenset[Value],
    ) -> None:
        self.forward, self.lasting, self.results = forward, lasting, results
        self.size = dict(_sizes((*forward, *backward)))
        self.made_by = {
            v: at for at, node in enumerate(forward) for v, _ in node.writes
        }
        self.readers = _readers(forward)
        self.read_back = _readers(backward)
        self.backward = backward
        self.distance = self._distances()
        self.fixed = {at for at, node in enumerate(forward) if self._is_fixed(node)}
        self.fixed |= self._behind_products()

    def weight(self, value: Value) -> float:
        """Bytes that it costs to keep a value, as AOTAutograd weighs them."""
        if value in self.lasting:
            return 0.0
        far = FARTHER ** max(1, min(self.distance.get(value, FARTHEST), FARTHEST))
        times = 1.0 if self._is_in_memory(value) else WRITTEN_FOR_IT
        return self.size[value] * far * times

    def sources(self, value: Value) -> tuple[Value, ...]:
        """What a value would be computed from again; nothing if it has to be kept."""
        at = self.made_by.get(value)
        if at is None or at in self.fixed or value in self.lasting:
            return ()
        return tuple(read.value for read in self.forward[at].reads)

    def stated(self, wanted: Iterable[Value], keeps: Collection[int]) -> set[Value]:
        """What has to be there for ``wanted``: of what was given, and of what the program keeps."""
        kept: set[Value] = set()
        pending, seen = list(wanted), set(wanted)
        while pending:
            value = pending.pop()
            at = self.made_by.get(value)
            if at is None or value[0] in keeps:
                kept.add(value)
                continue
            fresh = {r.value for r in self.forward[at].reads} - seen
            seen |= fresh
            pending += fresh
        return kept

    def _is_in_memory(self, value: Value) -> bool:
        """Whether forward writes a value even if backward does not want it."""
        at = self.made_by.get(value)
        if at is None or value in self.results:
            return True
        maker = self.forward[at]
        readers = [self.forward[reader] for reader in self.readers.get(value, ())]
        readers += [self.backward[reader] for reader in self.read_back.get(value, ())]
        return not all(_joins(maker, reader) for reader in readers)

    def _is_fixed(self, node: Node) -> bool:
        """Whether a node is not run again, whatever is kept."""
        if not (node.again and node.pointwise) or node.name in ALONE:
            return True
        read = sum(self.size[each.value] for each in node.reads)
        written = sum(size for _, size in node.writes)
        return STATISTIC * written < read or any(
            self.backward[reader].space is None
            for value, _ in node.writes
            for reader in self.read_back.get(value, ())
        )

    def _distances(self) -> dict[Value, int]:
        distance = dict.fromkeys(self.read_back, 1)
        for node in reversed(self.forward):
            reached = [distance[v] for v, _ in node.writes if v in distance]
            if not reached:
                continue
            for read in node.reads:
                farther = min(reached) + 1
                distance[read.value] = min(farther, distance.get(read.value, farther))
        return distance

    def _behind_products(self) -> set[int]:
        """Readers of a value that come after a product over it: they are not joined to its maker and first readers."""
        return {
            reader
            for value, readers in self.readers.items()
            for reader in readers
            if value in self.made_by
            and _joins(self.forward[self.made_by[value]], self.forward[reader])
            and reader > self._first_product(readers)
        }

    def _first_product(self, readers: Sequence[int]) -> int:
        """The first operation after ``readers``, and not after the last of them, that nothing can be joined to."""
        last = max(readers)
        pending = [(at, True) for at in sorted(set(readers))]
        seen = set(pending)
        while pending:
            at, joined = heapq.heappop(pending)
            if not joined:
                return at
            node = self.forward[at]
            for reader in self._after(node, last):
                step = (reader, _joins(node, self.forward[reader]))
                if step not in seen:
                    seen.add(step)
                    heapq.heappush(pending, step)
        return last

    def _after(self, node: Node, last: int) -> Iterator[int]:
        for value, _ in node.writes:
            yield from (at for at in self.readers.get(value, ()) if at <= last)


def _joins(maker: Node, reader: Node) -> bool:
    """Whether what one node writes is read inside the kernel that makes it."""
    if reader.name in ("cat", "stack"):
        return True
    return None not in (maker.space, reader.space) and maker.name not in ALONE


def _sizes(nodes: Iterable[Node]) -> Iterator[tuple[Value, float]]:
    """Bytes of values; what is only read is as large as the largest part that is."""
    read: dict[Value, float] = {}
    for node in nodes:
        for each in node.reads:
            read[each.value] = max(each.bytes, read.get(each.value, 0.0))
        read.update(node.writes)
    yield from read.items()


def _readers(nodes: Sequence[Node]) -> dict[Value, list[int]]:
    readers: dict[Value, list[int]] = {}
    for at, node in enumerate(nodes):
        for read in node.reads:
            readers.setdefault(read.value, []).append(at)
    return readers


def _cut(joint: _Joint, wanted: Iterable[Value]) -> set[Value]:
    """The values of the cheapest cut between what has to be kept and ``wanted``."""
    flow = nx.DiGraph()
    flow.add_nodes_from((SOURCE, SINK))
    pending, seen = list(wanted), set(wanted)
    for value in pending:
        flow.add_edge((value, "out"), SINK)
    while pending:
        value = pending.pop()
        flow.add_edge((value, "in"), (value, "out"), capacity=joint.weight(value))
        sources = joint.sources(value)
        if not sources:
            flow.add_edge(SOURCE, (value, "in"))
        for source in sources:
            flow.add_edge((source, "out"), (value, "in"))
        pending += [source for source in sources if source not in seen]
        seen.update(sources)
    _, (reached, _) = nx.minimum_cut(flow, SOURCE, SINK)
    return {v for v in seen if (v, "in") in reached and (v, "out") not in reached}


def _between(
    joint: _Joint, wanted: Iterable[Value], kept: Collection[Value]
) -> set[int]:
    """Places of the nodes that make ``wanted`` of what is kept."""
    again: set[int] = set()
    pending = [value for value in wanted if value not in kept]
    while pending:
        at = joint.made_by.get(pending.pop())
        if at is None or at in again:
            continue
        again.add(at)
        reads: Mapping[Value, None] = dict.fromkeys(
            read.value for read in joint.forward[at].reads
        )
        pending += [value for value in reads if value not in kept]
    return again


def _read_before_written(nodes: Iterable[Node]) -> set[Value]:
    written: set[Value] = set()
    read: set[Value] = set()
    for node in nodes:
        read.update(r.value for r in node.reads if r.value not in written)
        written.update(value for value, _ in node.writes)
    return read
