"""Gradient buckets of a recorded run: formed anew, or made for a run that had none.

A trace of the PyTorch profiler shows every gradient as it is accumulated, with its shape. DDP puts them into buckets in
that order (`torch/csrc/distributed/c10d/reducer.cpp`): a bucket closes with the gradient that fills it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from prestep.sim.errors import InputError
from prestep.workloads.traces.draft import Draft, Node
from prestep.workloads.traces.work import GPU, Meeting, Op

CAP = 25 * 2**20  # bytes; DDP's bucket_cap_mb
# Host time of issuing an all-reduce from DDP's hook, and of the kernel that scales one gradient into its bucket, s.
# Measured: 1b-ddp4-b2 with the profiler on, median of record_param_comms and of aten::mul in AccumulateGrad.
ISSUE, SCALE = 90e-6, 20e-6
STREAM = -1  # the stream that communication runs on where the recording had none


class Gradient(NamedTuple):
    """A recorded gradient.

    Attributes
    ----------
    time : float
        When the host accumulated it, s.
    size : float
        Bytes.
    step : int
        The step it belongs to.
    last : bool
        Whether it is the last gradient of its step.
    """

    time: float
    size: float
    step: int
    last: bool


@dataclass(frozen=True)
class Bucketing:
    """How gradients are put into buckets.

    Attributes
    ----------
    ranks : int
        Ranks that reduce each bucket.
    cap : float
        Bytes that close a bucket.
    copy : callable, optional
        Seconds of the kernel that scales a gradient of so many bytes into its bucket; None if the program has these
        kernels already.
    meetings : dict
        (step, number of the bucket in it) -> the all-reduce, which all ranks share.
    """

    ranks: int
    cap: float
    copy: Callable[[float], float] | None
    meetings: dict[tuple[int, int], Meeting] = field(default_factory=dict)

    def meeting(self, step: int, number: int, size: float) -> Meeting:
        """The all-reduce of one bucket of a step."""
        ranks = tuple(range(self.ranks))
        meeting = Meeting("all_reduce", size, ranks, "dp", [])
        return self.meetings.setdefault((step, number), meeting)


def split(draft: Draft, ranks: int, cap: float, copy: Callable[[float], float]) -> None:
    """DDP on `ranks` GPUs, from a run of one: a kernel that scales every gradient, and an all-reduce per bucket.

    Raises
    ------
    InputError
        If the trace does not show gradients.
    """
    cap = cap or CAP
    _place(draft, Bucketing(ranks, cap, copy))
    draft.world, draft.interferes = ranks, True
    draft.changes.append(f"DDP on {ranks} GPUs, buckets of {cap / 2**20:g} MiB")
    draft.notes["ranks that were not recorded: they do what the recorded ones do"] += (
        ranks - 1
    )


def rebucket(draft: Draft, cap: float, inline: bool = False) -> None:
    """Other buckets for the same gradients; `inline`: also those that were each reduced among the kernels.

    Raises
    ------
    InputError
        If the trace shows no all-reduce of gradients, or no gradients.
    """
    if not _remove(draft, inline):
        raise InputError.of(
            "--set",
            "parallel.bucket_cap",
            "no all-reduce of gradients",
            "a run with DDP",
        )
    _place(draft, Bucketing(draft.world, cap, copy=None))
    draft.changes.append(f"buckets of {cap / 2**20:g} MiB")


def _remove(draft: Draft, inline: bool) -> int:
    """Takes the all-reduces of gradients out of all programs; how many there were."""
    count = 0
    for rank, nodes in draft.programs.items():
        sizes = {size for _, size in draft.gradients.get(rank, ())} if inline else set()
        reduces = _gradient_reduces(nodes, sizes)
        count += len(reduces)
        for node in nodes:
            node.deps = [d for d in node.deps if id(d) not in reduces]
        draft.programs[rank] = _without(nodes, reduces)
    return count


def _gradient_reduces(nodes: list[Node], sizes: set[float]) -> set[int]:
    """Identities of the all-reduces of gradients: those on a stream of their own, or of a size in `sizes`."""
    compute = {n.stream for n in nodes if n.kind == GPU and not n.op.collective}
    reduces = [n for n in nodes if n.comms and n.op.collective == "all_reduce"]
    return {id(n) for n in reduces if n.stream not in compute or n.op.bytes in sizes}


def _without(nodes: list[Node], removed: set[int]) -> list[Node]:
    """A program without some operations; the node after one takes over its host time, but for that of issuing it."""
    remaining, owed = list[Node](), 0.0
    for node in nodes:
        if id(node) in removed:
            owed += max(0.0, node.host - ISSUE)
            continue
        node.host, owed = node.host + owed, 0.0
        remaining.append(node)
    return remaining


def _place(draft: Draft, bucketing: Bucketing) -> None:
    """Puts buckets into the program of every rank."""
    for rank, nodes in draft.programs.items():
        gradients = _gradients(draft, rank)
        draft.programs[rank] = _with_buckets(nodes, gradients, bucketing)
    draft.meetings = [*draft.meetings, *bucketing.meetings.values()]


def _gradients(draft: Draft, rank: int) -> list[Gradient]:
    """The gradients of a rank in the order in which its host accumulated them.

    Raises
    ------
    InputError
        If the trace does not show them.
    """
    recorded = sorted(draft.gradients.get(rank, []))
    if not recorded:
        hint = "record CPU activity with shapes (record_shapes=True), or start from a run with DDP"
        raise InputError.of(
            f"rank {rank}", "gradients", "none in the trace", "a training step", hint
        )
    nodes = draft.programs[rank]
    steps = [_step_at(nodes, time) for time, _ in recorded]
    following = [*steps[1:], None]
    return [
        Gradient(time, size, step, step != after)
        for (time, size), step, after in zip(recorded, steps, following, strict=True)
    ]


def _step_at(nodes: list[Node], time: float) -> int:
    """The step of the first operation that was issued at a time or after it."""
    return next((n.op.step for n in nodes if n.op.issue >= time), nodes[-1].op.step)


def _with_buckets(
    nodes: list[Node], gradients: list[Gradient], bucketing: Bucketing
) -> list[Node]:
    """A program with buckets, each issued when its last gradient is there; the last of a step awaits them."""
    program, accumulated = _Program(bucketing, _busiest(nodes)), 0
    for node in nodes:
        while (
            accumulated < len(gradients) and node.op.issue > gradients[accumulated].time
        ):
            program.accumulate(gradients[accumulated])
            accumulated += 1
        program.follow(node)
    return program.nodes


@dataclass
class _Program:
    """A program while buckets are put into it.

    Attributes
    ----------
    bucketing : Bucketing
    main : int
        The stream of the kernels.
    nodes : list of Node
        The program so far.
    size, number : float, int
        Bytes in the open bucket, and its number in its step.
    pending : list of Node
        All-reduces that the kernels have not awaited.
    last : Node, optional
        The last operation of the main stream.
    """

    bucketing: Bucketing
    main: int
    nodes: list[Node] = field(default_factory=list)
    size: float = 0.0
    number: int = 0
    pending: list[Node] = field(default_factory=list)
    last: Node | None = None

    def accumulate(self, gradient: Gradient) -> None:
        """Puts a gradient into the open bucket, and closes it if it is full or the step is over."""
        copy = self.bucketing.copy
        if copy is not None:
            seconds = copy(gradient.size)
            self.last = _new("scale gradient", gradient, self.main, seconds, SCALE)
            self.nodes.append(self.last)
        self.size += gradient.size
        if self.size >= self.bucketing.cap or gradient.last:
            self._issue(gradient)

    def _issue(self, gradient: Gradient) -> None:
        """Reduces the bucket that a gradient closes."""
        meeting = self.bucketing.meeting(gradient.step, self.number, self.size)
        bucket = _new("bucket", gradient, STREAM, 0.0, ISSUE)
        bucket.op.collective = "all_reduce"
        bucket.comms = [meeting]
        bucket.deps = [self.last] if self.last is not None else []
        self.nodes.append(bucket)
        self.pending.append(bucket)
        self.size = 0.0
        self.number = 0 if gradient.last else self.number + 1

    def follow(self, node: Node) -> None:
        """Appends a recorded operation; the first kernel after a step's last bucket awaits all buckets."""
        if node.kind == GPU and node.stream == self.main:
            if self.pending and self.number == 0:
                node.deps = [*node.deps, *self.pending]
                self.pending = []
            self.last = node
        self.nodes.append(node)


def _new(
    name: str, gradient: Gradient, stream: int, duration: float, host: float
) -> Node:
    """An operation that was not recorded, issued when a gradient is there."""
    time = gradient.time
    op = Op(GPU, name, time, time, time + duration, stream, step=gradient.step)
    return Node(op, stream, host=host, gap=0.0, duration=duration)


def _busiest(nodes: list[Node]) -> int:
    """The stream with most kernels; the first of several."""
    kernels = Counter(n.stream for n in nodes if n.kind == GPU and not n.comms)
    return max(kernels, key=lambda stream: kernels[stream])
