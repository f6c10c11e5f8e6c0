"""A recorded run ready to be changed: operations with the times that make them up, instead of when they happened.

Every GPU operation keeps two recorded pauses: `latency` after its launch and `gap` after whatever it followed on the
GPU. The one that held in the recording is exact; the other is the usual one of the trace, for when it comes to hold.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

from prestep.workloads.traces.work import GPU, SYNC, Meeting, Op, Work

# Longest times that count as usual: a launch to its start on an idle GPU, and a gap between two kernels, s.
USUAL_LATENCY, USUAL_GAP = 30e-6, 5e-6
LAUNCH_QUEUE = 1024  # launches a stream holds before the host waits; CUDA's, measured in traces: 1 000 to 1 030


@dataclass(slots=True, eq=False)
class Node:
    """One operation of a changeable run; seconds.

    `host` is the host's time before it, `duration` the kernel's alone (communication has its own); `deps` must end
    before it starts, or, for a synchronisation, before the host goes on.
    """

    op: Op
    stream: int
    host: float = 0.0
    gap: float = 0.0
    latency: float = 0.0
    duration: float = 0.0
    deps: list[Node] = field(default_factory=list)
    comms: list[Meeting] = field(default_factory=list)

    @property
    def kind(self) -> int:
        return self.op.kind

    @property
    def family(self) -> str:
        return self.op.family


@dataclass
class Draft:
    """Programs by rank, and what may be changed beside them.

    Attributes
    ----------
    programs : dict
        Rank -> its nodes in program order.
    meetings : list of Meeting
        Communication.
    world : int
        Ranks of the job.
    queue : int
        Launches that may be outstanding.
    gradients : dict
        Rank -> (time on its host, bytes) of every gradient.
    changes : list of str
        Named transformations that were made.
    notes : Counter
        What had to be assumed for them.
    interferes : bool
        Communication slows kernels beside it, which no recorded one had beside it.
    relieved : bool
        The slowdown by recorded communication is taken out of kernels, to be put in where communication comes to be.
    """

    programs: dict[int, list[Node]]
    meetings: list[Meeting]
    world: int
    queue: int
    gradients: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    interferes: bool = False
    relieved: bool = False


def draft_of(
    works: tuple[Work, ...], meetings: tuple[Meeting, ...], world: int
) -> Draft:
    """The draft that plays a recorded run exactly as it was."""
    copies = tuple(
        replace(meeting, members=list(meeting.members)) for meeting in meetings
    )
    programs = {work.rank: _nodes(work.ops, copies) for work in works}
    queue = max([LAUNCH_QUEUE, *(_outstanding(work.ops) for work in works)])
    return Draft(
        programs,
        list(copies),
        world,
        queue + 1,
        {work.rank: work.gradients for work in works},
    )


def _nodes(ops: list[Op], meetings: tuple[Meeting, ...]) -> list[Node]:
    host, (gap, latency) = _host(ops), _waits(ops)
    nodes = [
        Node(
            op,
            op.stream,
            host[i],
            gap[i],
            latency[i],
            op.end - op.start if op.kind == GPU else 0.0,
        )
        for i, op in enumerate(ops)
    ]
    for node in nodes:
        node.deps = [nodes[d] for d in node.op.deps]
        node.comms = [meetings[c] for c in node.op.comms]
    return nodes


def _host(ops: list[Op]) -> list[float]:
    """Seconds of the host before each operation: from the one before, or from the end of a synchronisation."""
    cost, clock = [0.0] * len(ops), 0.0
    for i, op in enumerate(ops):
        if op.issue == -inf:
            continue
        cost[i] = max(0.0, op.issue - clock)
        clock = max(clock, op.issue)
        if op.kind == SYNC:
            # What the call took after its work was done, or without any, stays host time.
            clock = max([clock, *(ops[d].end for d in op.deps)])
    return cost


def _waits(ops: list[Op]) -> tuple[list[float], list[float]]:
    """(gap, latency) of every operation; see the module."""
    gap, latency = [0.0] * len(ops), [0.0] * len(ops)
    ready = _ready(ops)
    usual_gap, usual_latency = _usual_waits(ops, ready)
    for i, op in enumerate(ops):
        if op.kind != GPU:
            continue
        since_launch = op.start - op.issue if op.issue > -inf else op.start
        since_ready = max(0.0, op.start - ready[i])
        if ready[i] == -inf or op.issue > ready[i]:
            gap[i], latency[i] = min(usual_gap, since_ready), since_launch
        else:
            gap[i], latency[i] = since_ready, min(usual_latency, since_launch)
    return gap, latency


def _usual_waits(ops: list[Op], ready: list[float]) -> tuple[float, float]:
    """The usual gap between kernels, and the usual time from a launch to a start on an idle GPU."""
    gaps, latencies = list[float](), list[float]()
    for op, free in zip(ops, ready, strict=True):
        if op.kind != GPU:
            continue
        if 0 <= op.start - free < USUAL_GAP:
            gaps.append(op.start - free)
        if free <= op.issue and 0 <= op.start - op.issue < USUAL_LATENCY:
            latencies.append(op.start - op.issue)
    return (median(gaps) if gaps else 0.0, median(latencies) if latencies else 0.0)


def _ready(ops: list[Op]) -> list[float]:
    """When all that an operation follows on the GPU had ended; -inf if it follows nothing."""
    ready, last = [-inf] * len(ops), dict[int, float]()
    for i, op in enumerate(ops):
        if op.kind == GPU:
            ready[i] = max([last.get(op.stream, -inf), *(ops[d].end for d in op.deps)])
            last[op.stream] = op.end
    return ready


def _outstanding(ops: list[Op]) -> int:
    """Most operations that were issued before the oldest that had not ended: what the launch queue held."""
    most, oldest = 0, 0
    for i, op in enumerate(ops):
        while oldest < i and (ops[oldest].kind != GPU or ops[oldest].end <= op.issue):
            oldest += 1
        most = max(most, i - oldest)
    return most
