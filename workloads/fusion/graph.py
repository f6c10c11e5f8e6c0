"""The graph of a compiled function: nodes, the values that they read and write, and which value a storage has when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from prestep.sim.graph.kernel import Kernel

Value = tuple[int, int]  # a storage and its version
Place = tuple[int, int]  # a storage and where in it a tensor begins
#: Namespace of operations that stay the kernels that they are, whatever they are called.
OPAQUE = "opaque"

#: What is summed both ways by one kernel: so many rows, and so many for each column; elements; the longest row.
MANY_ROWS, TALL, LARGE, LONGEST = 4096, 2, 5 * 2**20, 2**14


@dataclass(frozen=True)
class Step:
    """An operation of a region as it was recorded; (0, 0) is the place of a tensor on the host."""

    operation: int
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]


@dataclass
class Region:
    """A call of a compiled function.

    Attributes
    ----------
    forward, backward
        The operations of its pieces.
    results
        Storages that the call returned.
    freed
        Storages that were given back within its backward.
    """

    forward: list[list[Step]] = field(default_factory=list)
    backward: list[list[Step]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    freed: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Read:
    """A tensor that a node reads.

    Attributes
    ----------
    offset
        Where in the storage it begins.
    part
        Which part of a joined tensor it becomes; 0 elsewhere.
    picked
        Of what it is computed from no more is read than its bytes.
    across
        Elements that are read in another order than they lie in memory.
    """

    value: Value
    offset: int
    bytes: float
    part: int = 0
    picked: bool = False
    across: int = 0


@dataclass(frozen=True)
class Space:
    """What a kernel runs over: elements, and the results that they are reduced to (``rows``; 0: not reduced)."""

    elements: int
    rows: int = 0
    across: bool = False  # neighbours in memory belong to different results


def alike(one: Space, other: Space) -> bool:
    """Whether one kernel can run over both: the same elements, in the same rows, or one for each row."""
    if one.rows and other.rows:
        if one.elements != other.elements:
            return False
        return one.across == other.across and one.rows == other.rows
    return one.elements == other.elements or other.elements == one.rows > 0


def both_ways(along: Space, across: Space) -> bool:
    """Whether sums along rows and across them are one kernel, which keeps a row on chip.

    Source: torch/_inductor/scheduler.py, MixOrderReduction.can_fuse (PyTorch 2.10 to 2.13); traces of norms' backward
    have one kernel for 4,096 rows of 2,048, and two for 2,048 of 4,096.
    """
    if not along.rows or along.across or along.elements != across.elements:
        return False
    columns = along.elements // along.rows
    tall = along.rows >= max(TALL * columns, MANY_ROWS)
    return tall and along.elements >= LARGE and columns <= LONGEST


def wider(one: Space | None, other: Space | None) -> Space | None:
    """The space of a group with one node more: the one with rows, of neighbours in memory if there are any."""
    if one is None or other is None:
        return other
    if other.rows and (not one.rows or one.across):
        return other
    return one


@dataclass(frozen=True)
class Node:
    """A part of an operation.

    Attributes
    ----------
    writes
        Values and their bytes.
    space
        None for what stays the kernels that it is without a compiler.
    again
        Whether it may be computed a second time.
    functions
        What takes arithmetic for each element, by the names of `prestep.sim.costs.generated`.
    """

    name: str
    reads: tuple[Read, ...]
    writes: tuple[tuple[Value, float], ...]
    space: Space | None
    kernels: tuple[Kernel, ...] = ()
    again: bool = False
    functions: tuple[str, ...] = ()

    @property
    def pointwise(self) -> bool:
        return self.space is not None and not self.space.rows


class Versions:
    """Which value a storage has now; storages that the region did not take itself are ``foreign``."""

    def __init__(self) -> None:
        self.now: dict[int, int] = {}
        self.foreign: set[int] = set()
        self._same: dict[Value, Value] = {}  # values that were computed before
        self._statistics = 0

    def read(self, storage: int) -> Value:
        if storage not in self.now:
            self.foreign.add(storage)
        return self.of(storage)

    def of(self, storage: int) -> Value:
        """The value in a storage; that of another one where the same was computed before."""
        value = storage, self.now.setdefault(storage, 0)
        return self._same.get(value, value)

    def original(self, node: Node) -> Node:
        """A node that reads values where they were computed first."""
        reads = (replace(r, value=self._same.get(r.value, r.value)) for r in node.reads)
        return replace(node, reads=tuple(reads))

    def repeats(self, node: Node, before: Node) -> None:
        """A node computes what another one has."""
        pairs = zip(node.writes, before.writes, strict=True)
        self._same.update((value, first) for (value, _), (first, _) in pairs)

    def write(self, storage: int) -> Value:
        self.now[storage] = self.now.get(storage, 0) + 1
        return storage, self.now[storage]

    def unnamed(self) -> Value:
        """A value that no tensor of the program has."""
        self._statistics -= 1
        return self._statistics, 0


def storages(steps: Iterable[Step]) -> Iterator[int]:
    """Of all tensors that are read and written, in order."""
    for step in steps:
        for storage, _ in (*step.reads, *step.writes):
            yield storage
