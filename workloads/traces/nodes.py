"""Execution traces say what ran after what, and for how long, but not always when: nodes -> spans on a timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prestep.workloads.traces.collectives import KERNEL, KERNEL_OPS, OPS
from prestep.workloads.traces.files import LARGEST_ID, LONGEST
from prestep.workloads.traces.schema import Span
from prestep.workloads.traces.steps import NAMED

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


# Of an execution trace: what is left out, and why.
DAMAGED = "node", "without an id, or with numbers that are none"


def sound(nodes: Iterable[Node | None]) -> list[Node]:
    """Nodes whose numbers are those of a real run."""
    return [node for node in nodes if node is not None and _possible(node)]


def _possible(node: Node) -> bool:
    """Whether ids fit the table, and times and sizes are finite."""
    ids = (node.id, node.thread)
    times = (node.start, node.duration)
    if not all(isinstance(number, int | float) for number in (*ids, *times, node.size)):
        return False
    return (
        all(abs(number) < LARGEST_ID for number in ids)
        and all(abs(time) < LONGEST * 1e-6 for time in times)
        and 0 <= node.size < LARGEST_ID
    )


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
        if node.host:
            if NAMED.match(node.name):
                end = node.start + node.duration
                spans.append(Span("step", node.name, node.thread, node.start, end))
            continue
        parents = [by_id[d] for d in node.deps if d in by_id and by_id[d].host]
        if parents:
            begun = max(parent.start for parent in parents)
            spans.append(Span("launch", "launch", 0, begun, begun, correlation=node.id))
        spans.append(_span(node, parents))
    return spans


def _span(node: Node, parents: list[Node]) -> Span:
    """A GPU node, which the last of its parents on the host has launched."""
    return Span(
        _kind(node.name),
        node.name,
        node.thread,
        node.start,
        node.start + node.duration,
        operator=parents[-1].name if parents else "",
        bytes=node.size,
        collective="" if node.computes else node.collective or _collective(node.name),
        group=node.group,
        peers=node.peers,
        correlation=node.id if parents else -1,
        shape=node.shape,
        dtype=node.dtype,
    )


def _kind(name: str) -> str:
    """The kind of GPU work, by its name."""
    if name.startswith("Memcpy"):
        return "memcpy"
    return "memset" if name.startswith("Memset") else "kernel"


def _collective(name: str) -> str:
    """The collective that a kernel or an operator of this name runs; "" if none."""
    kernel = KERNEL.search(name)
    if kernel:
        return KERNEL_OPS[kernel.group(1)]
    if name.startswith("nccl:"):
        return OPS.get(name.removeprefix("nccl:").lower(), "")
    return ""


@dataclass
class _Timeline:
    """Nodes placed on their threads and streams: when each of these is free, and when each node has ended."""

    free: dict[tuple[bool, int], float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)

    def add(self, node: Node, before: Sequence[int]) -> None:
        """Starts a node when its thread is free and the nodes before it have ended."""
        thread = (node.host, node.thread)
        node.start = max([self.free.get(thread, 0.0), *(self.ends[d] for d in before)])
        self.free[thread] = self.ends[node.id] = node.start + node.duration


def _place(nodes: Sequence[Node], by_id: dict[int, Node]) -> None:
    """Gives every node the earliest start that its dependencies and its thread allow."""
    timeline = _Timeline()
    waiting = list(nodes)
    while waiting:
        blocked = []
        for node in waiting:
            before = [d for d in node.deps if d in by_id]
            if any(d not in timeline.ends for d in before):
                blocked.append(node)
            else:
                timeline.add(node, before)
        if len(blocked) == len(waiting):
            # A cycle: its nodes run in the order of the file.
            for node in blocked:
                timeline.add(node, ())
            return
        waiting = blocked
