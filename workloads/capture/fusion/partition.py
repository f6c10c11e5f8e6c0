"""What the forward part of a compiled function keeps for its backward, and what backward computes again.

AOTAutograd cuts the joint graph where the fewest bytes cross. Our cut goes over the values that backward reads, latest
first: a pointwise value is computed again where what it is computed from takes no more memory than itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from workloads.capture.fusion.graph import Node, Value

#: Bytes kept over bytes of what they stand for, up to which statistics of rows are kept beside it (guess).
STATISTICS = 1.02


@dataclass(frozen=True)
class Partition:
    """A cut between forward and backward.

    Attributes
    ----------
    kept
        Values that backward reads of what forward had or made.
    again
        Nodes of forward that backward runs once more, in order.
    """

    kept: frozenset[Value]
    again: tuple[Node, ...]


def partition(
    forward: Sequence[Node],
    backward: Iterable[Node],
    lasting: Collection[Value],
) -> Partition:
    """The cut; ``lasting`` are values that are in memory during backward anyway: weights and results."""
    kept = _read_before_written(backward)
    again: list[Node] = []
    for node in reversed(forward):
        mine = {value: size for value, size in node.writes if value in kept}
        if not mine or not (node.again and node.pointwise):
            continue
        others = {
            read.value: read.bytes
            for read in node.reads
            if read.value not in kept and read.value not in lasting
        }
        too_much = sum(others.values()) > STATISTICS * sum(mine.values())
        if too_much or mine.keys() & set(lasting):
            continue
        kept = (kept - mine.keys()) | {read.value for read in node.reads}
        again.append(node)
    return Partition(frozenset(kept), tuple(reversed(again)))


def _read_before_written(nodes: Iterable[Node]) -> set[Value]:
    written: set[Value] = set()
    read: set[Value] = set()
    for node in nodes:
        read.update(r.value for r in node.reads if r.value not in written)
        written.update(value for value, _ in node.writes)
    return read
