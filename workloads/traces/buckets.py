"""Gradient buckets of a recorded run: put together anew, or made for a run that had none.

A trace of the PyTorch profiler shows every gradient as it is accumulated, with its shape. DDP puts them into buckets in
that order (`torch/csrc/distributed/c10d/reducer.cpp`): a bucket closes with the gradient that fills it.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.errors import InputError, Mistake
from workloads.traces.draft import Draft, Node
from workloads.traces.matching import Meeting
from workloads.traces.work import GPU, Op

CAP = 25 * 2**20  # bytes; DDP's bucket_cap_mb
# Host time of issuing an all-reduce from DDP's hook, and of the kernel that scales one gradient into its bucket, s.
# Measured: 1b-ddp4-b2 with the profiler on, median of record_param_comms and of aten::mul in AccumulateGrad.
ISSUE, SCALE = 90e-6, 20e-6
STREAM = -1  # the stream that communication runs on where the recording had none


def split(draft: Draft, ranks: int, cap: float, copy: Callable[[float], float]) -> None:
    """DDP on `ranks` GPUs, from a run of one: a kernel that scales every gradient, and an all-reduce per bucket.

    Raises
    ------
    InputError
        If the trace does not show gradients.
    """
    _place(draft, ranks, cap or CAP, copy)
    draft.world, draft.interferes = ranks, True
    draft.changes.append(
        f"DDP on {ranks} GPUs, buckets of {(cap or CAP) / 2**20:g} MiB"
    )
    draft.notes["ranks that were not recorded: they do what the recorded ones do"] += (
        ranks - 1
    )


def rebucket(draft: Draft, cap: float, inline: bool = False) -> None:
    """Other buckets for the same gradients; `inline`: also those that were each reduced among the kernels."""
    if not _remove(draft, inline):
        raise InputError(
            Mistake(
                "--set",
                "parallel.bucket_cap",
                "no all-reduce of gradients",
                "a run with DDP",
            )
        )
    _place(draft, draft.world, cap, None)
    draft.changes.append(f"buckets of {cap / 2**20:g} MiB")


def _remove(draft: Draft, inline: bool) -> int:
    """Takes the all-reduces of gradients out: those on a stream of their own, or of a gradient's size."""
    gone = 0
    for rank, nodes in draft.programs.items():
        sizes = {size for _, size in draft.gradients.get(rank, ())} if inline else set()
        mixed = {n.stream for n in nodes if n.kind == GPU and not n.op.collective}
        reduces = [n for n in nodes if n.comms and n.op.collective == "all_reduce"]
        out = {id(n) for n in reduces if n.stream not in mixed or n.op.bytes in sizes}
        gone += len(out)
        for node in nodes:
            node.deps = [d for d in node.deps if id(d) not in out]
        kept, owed = [], 0.0
        for node in nodes:
            if id(node) in out:
                owed += max(0.0, node.host - ISSUE)
                continue
            node.host, owed = node.host + owed, 0.0
            kept.append(node)
        draft.programs[rank] = kept
    return gone


def _place(
    draft: Draft, ranks: int, cap: float, copy: Callable[[float], float] | None
) -> None:
    meetings: dict[tuple[int, int], Meeting] = {}
    for rank, nodes in draft.programs.items():
        found = draft.gradients.get(rank, [])
        if not found:
            hint = "record CPU activity with shapes (record_shapes=True), or start from a run with DDP"
            raise InputError(
                Mistake(
                    f"rank {rank}",
                    "gradients",
                    "none in the trace",
                    "a training step",
                    hint,
                )
            )
        draft.programs[rank] = _with_buckets(
            nodes, sorted(found), rank, ranks, cap, copy, meetings
        )
    draft.meetings = [*draft.meetings, *meetings.values()]


def _with_buckets(
    nodes: list[Node],
    gradients: list[tuple[float, float]],
    rank: int,
    ranks: int,
    cap: float,
    copy: Callable[[float], float] | None,
    meetings: dict[tuple[int, int], Meeting],
) -> list[Node]:
    """A program with buckets, each issued when its last gradient is there; the last of a step awaits them."""
    main = _busiest(nodes)
    result, at, size, number = list[Node](), 0, 0.0, 0
    pending, last = list[Node](), None
    steps = [
        next((n.op.step for n in nodes if n.op.issue >= time), nodes[-1].op.step)
        for time, _ in gradients
    ]
    for node in nodes:
        while at < len(gradients) and node.op.issue > gradients[at][0]:
            time, got = gradients[at]
            ends = at + 1 == len(gradients) or steps[at + 1] != steps[at]
            if copy is not None:
                last = _new("scale gradient", time, main, steps[at], copy(got), SCALE)
                result.append(last)
            size, at = size + got, at + 1
            if size >= cap or ends:
                key = steps[at - 1], number
                meeting = meetings.setdefault(
                    key, Meeting("all_reduce", size, tuple(range(ranks)), "dp", [])
                )
                bucket = _new("bucket", time, STREAM, steps[at - 1], 0.0, ISSUE)
                bucket.op.collective = "all_reduce"
                bucket.comms, bucket.deps = (
                    [meeting],
                    [last] if last is not None else [],
                )
                result.append(bucket)
                pending.append(bucket)
                size, number = 0.0, 0 if ends else number + 1
        if node.kind == GPU and node.stream == main:
            if pending and number == 0:
                node.deps = [*node.deps, *pending]
                pending = []
            last = node
        result.append(node)
    return result


def _new(
    name: str, time: float, stream: int, step: int, duration: float, host: float
) -> Node:
    op = Op(GPU, name, time, time, time + duration, stream, step=step)
    return Node(op, stream, host=host, gap=0.0, duration=duration)


def _busiest(nodes: list[Node]) -> int:
    """The stream with most kernels."""
    count: dict[int, int] = {}
    for node in nodes:
        if node.kind == GPU and not node.comms:
            count[node.stream] = count.get(node.stream, 0) + 1
    return max(count, key=lambda stream: count[stream])
