"""The order of a compiled graph's kernels: of four, the one that needs the least memory.

Source: torch/_inductor/memory.py, reorder_for_peak_memory (PyTorch 2.7 to 2.13), which is on by default and runs last.
It is why gradients of large weights come at the end of a block's backward: they free less than they take.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prestep.workloads.fusion.graph import Value


@dataclass(frozen=True)
class Task:
    """A kernel to be put in order.

    Attributes
    ----------
    reads
        Values of other tasks, or that are there before all of them.
    writes
        Values that it makes, with their bytes.
    sources
        Tasks that have to come before it, by number.
    """

    reads: frozenset[Value]
    writes: Mapping[Value, float]
    sources: frozenset[int]

    @property
    def size(self) -> float:
        """Bytes that it takes."""
        return sum(self.writes.values())


def order_of(
    tasks: Sequence[Task], freed: Mapping[Value, float], needed: Collection[Value]
) -> Sequence[int]:
    """Numbers of tasks in the order that needs the least memory; the one that they have if none needs less.

    ``freed`` are values that are there before and given back after their last reader, ``needed`` those that stay.

    Examples
    --------
    A gradient of a weight waits for what gives back more than it takes:

    >>> weight = Task(frozenset({(1, 0)}), {(2, 0): 9.0}, frozenset())
    >>> small = Task(frozenset({(1, 0), (5, 0)}), {(3, 0): 1.0}, frozenset())
    >>> last = Task(frozenset({(3, 0)}), {(4, 0): 1.0}, frozenset({1}))
    >>> order_of([weight, small, last], {(1, 0): 5.0, (5, 0): 8.0}, {(2, 0), (4, 0)})
    [1, 2, 0]
    """
    graph = _Graph(tasks, freed, needed)
    orders: list[Sequence[int]] = [range(len(tasks))]
    orders += [graph.least_memory_first(), graph.breadth_first(), graph.depth_first()]
    return min(orders, key=graph.peak)


class _Graph:
    """Tasks, who reads what, and what is given back after its last reader."""

    def __init__(
        self,
        tasks: Sequence[Task],
        freed: Mapping[Value, float],
        needed: Collection[Value],
    ) -> None:
        self.tasks, self.needed = tasks, frozenset(needed)
        self.given = sum(freed.values())
        self.size = dict(freed)
        for task in tasks:
            self.size.update(task.writes)
        self.taken = [task.size for task in tasks]
        self.reads = [[v for v in task.reads if v in self.size] for task in tasks]
        self.readers: dict[Value, list[int]] = {}
        self.targets: list[list[int]] = [[] for _ in tasks]
        for at, task in enumerate(tasks):
            for value in self.reads[at]:
                self.readers.setdefault(value, []).append(at)
            for source in sorted(task.sources):
                self.targets[source].append(at)

    def peak(self, order: Sequence[int]) -> float:
        """Bytes that an order needs at most; a task gives back what it has read last when it has ended."""
        step = {at: number for number, at in enumerate(order)}
        change = [0.0] * (len(order) + 1)
        for value, size in self.size.items():
            if value not in self.needed and value in self.readers:
                last = max(step[reader] for reader in self.readers[value])
                change[last + 1] -= size
        for at, task in enumerate(self.tasks):
            change[step[at]] += self.taken[at]
            for value, size in task.writes.items():
                if value not in self.needed and value not in self.readers:
                    change[step[at] + 1] -= size
        live = peak = self.given
        for each in change:
            live += each
            peak = max(peak, live)
        return peak

    def least_memory_first(self) -> list[int]:
        """Of the tasks that can run and raise no peak, the one after which the least is in memory (LPMF)."""
        uses = {v: len(r) + (v in self.needed) for v, r in self.readers.items()}
        frees = [self._freed_alone(at, uses) for at in range(len(self.tasks))]
        waits = [len(task.sources) for task in self.tasks]
        ready = [at for at, count in enumerate(waits) if not count]
        results = sum(self.size[v] for v in self.needed if v in self.size)
        live = self.given
        gap = max(live, results) - live
        order: list[int] = []
        while ready:
            keys = ((self.taken[at], at) for at in ready)
            _, _, at = min(
                (size if size > gap else 0.0, size - frees[at], at) for size, at in keys
            )
            ready.remove(at)
            order.append(at)
            highest = live + max(gap, self.taken[at])
            live += self.taken[at] - frees[at]
            gap = highest - live
            for target in self.targets[at]:
                waits[target] -= 1
                if not waits[target]:
                    ready.append(target)
            for value in self.reads[at]:
                uses[value] -= 1
                if uses[value] == 1:  # whichever reads it last gives it back
                    for reader in self.readers[value]:
                        frees[reader] += self.size[value]
        return order

    def _freed_alone(self, at: int, uses: Mapping[Value, int]) -> float:
        """Bytes that a task gives back whenever it runs: read by nobody else, or by nobody."""
        own = [v for v in self.tasks[at].writes if v not in self.readers]
        own = [v for v in own if v not in self.needed]
        own += [v for v in self.reads[at] if uses[v] == 1]
        return sum(self.size[v] for v in own)

    def breadth_first(self) -> list[int]:
        """Tasks whose sources ran earliest."""
        place = [-1] * len(self.tasks)
        waits = [len(task.sources) for task in self.tasks]
        heap: list[tuple[list[int], int]] = [
            ([], at) for at, count in enumerate(waits) if not count
        ]
        order: list[int] = []
        while heap:
            _, at = heapq.heappop(heap)
            place[at] = len(order)
            order.append(at)
            for target in self.targets[at]:
                waits[target] -= 1
                if not waits[target]:
                    sources = sorted(place[s] for s in self.tasks[target].sources)
                    heapq.heappush(heap, (sources, target))
        return order

    def depth_first(self) -> list[int]:
        """Tasks that touch little memory, each behind its sources."""
        touched = [
            size + sum(self.size[v] for v in reads)
            for size, reads in zip(self.taken, self.reads, strict=True)
        ]

        def smallest(tasks: Collection[int]) -> Iterator[int]:
            return iter(sorted(tasks, key=lambda at: (touched[at], at)))

        order: list[int] = []
        seen: set[int] = set()
        for start in smallest(range(len(self.tasks))):
            if start in seen:
                continue
            seen.add(start)
            path = [(start, smallest(self.tasks[start].sources))]
            while path:
                at, sources = path[-1]
                source = next((s for s in sources if s not in seen), None)
                if source is None:
                    path.pop()
                    order.append(at)
                else:
                    seen.add(source)
                    path.append((source, smallest(self.tasks[source].sources)))
        return order
