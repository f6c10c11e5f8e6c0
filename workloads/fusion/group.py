"""Nodes that become one kernel, and the kernel that Inductor makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.fusion.graph import Node, Space, Value
from prestep.workloads.fusion.split import partials, partials_both_ways

POINTWISE, REDUCTION, PARTIAL_SUMS = "fused_pointwise", "fused_reduction", "fused_sum"
#: Bytes that reading an element across costs a reduction along rows: a loop reads parts of sectors, twice (measured on
#: an H200: 2.4 ps an element, in one of four cases 4.4; kernels over elements alone lose nothing).
TURNED = 10.0
Key = tuple[Value, int, tuple[int, ...]]
#: Functions by the value that they make, and by the ways in which it is read: each way is computed on its own.
Functions = dict[tuple[Value, tuple[tuple[int, int], ...]], tuple[str, ...]]


@dataclass(frozen=True)
class Launch:
    """A kernel and the operations in it.

    Attributes
    ----------
    reads, writes
        Storages of what others wrote and it reads, and of what lasts of its results.
    in_place
        Storages that it could write in the place of others that it reads: first what is written.
    """

    kernel: Kernel
    name: str
    reads: frozenset[int] = frozenset()
    writes: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass
class Group:
    """Nodes that become one kernel, or one node that stays as it is.

    Attributes
    ----------
    reads
        Bytes by value, place and part of a joined tensor.
    turned
        Elements that are read across their order in memory, by value.
    functions
        What it evaluates for each element.
    users
        How many of the nodes read a value.
    places
        What a node writes, with what it reads element by element where it writes.
    sources
        Groups that write what it reads.
    """

    first: int
    space: Space | None
    nodes: list[Node] = field(default_factory=list)
    reads: dict[Key, float] = field(default_factory=dict)
    turned: dict[Value, int] = field(default_factory=dict)
    functions: Functions = field(default_factory=dict)
    users: Counter[Value] = field(default_factory=Counter)
    places: list[tuple[Value, Value]] = field(default_factory=list)
    sources: set[int] = field(default_factory=set)


def launches_of(
    group: Group, lasting: Sequence[tuple[Value, float]]
) -> Iterator[Launch]:
    """The kernels of a group, whose results ``lasting`` are in memory."""
    names = "+".join(dict.fromkeys(node.name for node in group.nodes))
    own = {value for node in group.nodes for value, _ in node.writes}
    reads = frozenset(value[0] for value, _, _ in group.reads if value not in own)
    writes = tuple(value[0] for value, _ in lasting)
    if group.space is None:
        for node in group.nodes:
            for kernel in node.kernels:
                yield Launch(kernel, names, reads, writes)
        return
    written = sum(size for _, size in lasting)
    kernel = _generated(group, group.space, written)
    alone = (pair for pair in group.places if group.users[pair[1]] == 1)
    in_place = tuple((new, old) for (new, _), (old, _) in alone)
    yield Launch(kernel, names, reads, writes, in_place)
    for node in group.nodes:
        for kernel in _sums_of_partials(node, group.space):
            yield Launch(kernel, node.name, writes=writes)


def _generated(group: Group, space: Space, written: float) -> Kernel:
    """The kernel of a group: what it reads of others and writes, and the functions that it evaluates."""
    own = {value for node in group.nodes for value, _ in node.writes}
    read = sum(size for key, size in group.reads.items() if key[0] not in own)
    kind = REDUCTION if space.rows else POINTWISE
    if space.rows and not space.across:
        read += TURNED * max(group.turned.values(), default=0)
    functions = [name for each in group.functions.values() for name in each]
    layout = "_".join(sorted(functions))
    return Kernel(
        kind, (space.elements,), layout=layout, bytes=max(1.0, read + written)
    )


def _sums_of_partials(node: Node, space: Space) -> Iterator[Kernel]:
    """The further kernels of a reduction that is in a group over ``space``."""
    if node.space is None or not node.space.rows:
        return
    results, reduced = node.space.rows, node.space.elements // node.space.rows
    if node.space.across and not space.across:
        parts = [partials_both_ways(results, reduced)]
    else:
        parts = partials(results, reduced, node.space.across)
    made = [4.0 * count for count in parts[1:]] + [sum(s for _, s in node.writes)]
    for count, size in zip(parts, made, strict=False):
        yield Kernel(PARTIAL_SUMS, (results,), bytes=4.0 * count + size)
