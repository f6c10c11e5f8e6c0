"""Execution traces say what ran after what, and for how long, but not always when: nodes -> spans on a timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from workloads.traces.collectives import KERNEL, KERNEL_OPS, OPS
from workloads.traces.schema import Span

# The repair of traces that say how long, but not when.
UNTIMED = "nodes without a start, placed after what they depend on"


@dataclass(slots=True)
class Node:
    """A node of an execution trace; seconds, `start` negative if it has none."""

    id: int
    name: str
    host: bool
    duration: float
    start: float = -1.0
    thread: int = 0
    deps: list[int] = field(default_factory=list)
    collective: str = ""
    size: float = 0.0
    group: str = ""
    peers: str = ""
    shape: str = ""
    dtype: str = ""
    computes: bool = False  # said to be no communication, whatever its name


def spans_of(nodes: Sequence[Node], repaired: Counter[str]) -> list[Span]:
    """Host nodes as calls, GPU nodes as kernels that follow the calls they depend on.

    Where nodes have no start they run as early as their dependencies and their thread or stream allow, as Chakra's
    feeder would issue them; that is counted as a repair.
    """
    by_id = {node.id: node for node in nodes}
    if any(node.start < 0 for node in nodes):
        repaired[UNTIMED] += sum(n.start < 0 for n in nodes)
        _place(nodes, by_id)
    spans = []
    for node in nodes:
        end = node.start + node.duration
        if node.host:
            continue
        op = "" if node.computes else node.collective or _collective(node.name)
        kind = (
            "memcpy"
            if node.name.startswith("Memcpy")
            else "memset"
            if node.name.startswith("Memset")
            else "kernel"
        )
        parents = [by_id[d] for d in node.deps if d in by_id and by_id[d].host]
        operator = parents[-1].name if parents else ""
        if parents:
            begun = max(parent.start for parent in parents)
            spans.append(Span("launch", "launch", 0, begun, begun, correlation=node.id))
        span = Span(
            kind,
            node.name,
            node.thread,
            node.start,
            end,
            operator,
            node.size,
            op,
            node.group,
            node.peers,
            correlation=node.id if parents else -1,
            shape=node.shape,
            dtype=node.dtype,
        )
        spans.append(span)
    return spans


def _collective(name: str) -> str:
    found = KERNEL.search(name)
    if found:
        return KERNEL_OPS[found.group(1)]
    return (
        OPS.get(name.removeprefix("nccl:").lower(), "")
        if name.startswith("nccl:")
        else ""
    )


def _place(nodes: Sequence[Node], by_id: dict[int, Node]) -> None:
    free: dict[tuple[bool, int], float] = {}
    ends: dict[int, float] = {}
    waiting = list(nodes)
    while waiting:
        left = []
        for node in waiting:
            before = [d for d in node.deps if d in by_id]
            if any(d not in ends for d in before):
                left.append(node)
                continue
            thread = (node.host, node.thread)
            node.start = max([free.get(thread, 0.0), *(ends[d] for d in before)])
            free[thread] = ends[node.id] = node.start + node.duration
        if len(left) == len(
            waiting
        ):  # a cycle: what is left runs in the order of the file
            for node in left:
                node.start = free.get((node.host, node.thread), 0.0)
                free[node.host, node.thread] = ends[node.id] = (
                    node.start + node.duration
                )
            left = []
        waiting = left
