"""A replay as a Chrome trace: measured and simulated tracks side by side, or the simulated run as Kineto's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.sim.replay.outcome import Outcome
from prestep.workloads.traces.draft import Node
from prestep.workloads.traces.schema import (
    Recording,
    Span,
    dropped_of,
    start_at_zero,
    table_of,
)
from prestep.workloads.traces.work import GPU, MARK
from prestep.workloads.traces.writers import kineto

LAUNCH = "cudaLaunchKernel"
LAUNCH_CALL = 4e-6  # s drawn for a launch call, about what it takes in measured traces
OWN_STREAM = 1000  # drawn for communication that no recording had
HOST = 1  # the thread of the host's calls
Event = dict[str, Any]


def write_trace(outcome: Outcome, path: Path) -> None:
    """Measured and simulated tracks side by side for Perfetto; in a folder, the simulated run as Kineto, a file a rank.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    try:
        if path.is_dir() or not path.suffix:
            path.mkdir(parents=True, exist_ok=True)
            for index, program in enumerate(outcome.replay.graph.programs):
                file = path / f"rank{program.rank}.json.gz"
                kineto.write(_recording(outcome, index), file)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            events = list(_side_by_side(outcome))
            kineto.save({"displayTimeUnit": "ms", "traceEvents": events}, path)
    except OSError as error:
        raise InputError.of(
            str(path), "", str(error.strerror), "a path that can be written"
        ) from None


def _side_by_side(outcome: Outcome) -> Iterator[Event]:
    """Two tracks a rank."""
    recorded = len(outcome.replay.job.works)
    for index, program in enumerate(outcome.replay.graph.programs):
        rank, nodes = program.rank, outcome.replay.programs[index]
        times = [(node.op.start, node.op.finish) for node in nodes]
        measured = zip(nodes, times, strict=True) if index < recorded else ()
        yield from _track(2 * rank, f"rank {rank} measured", measured)
        columns = (
            times[index][0].tolist() for times in (outcome.run.start, outcome.run.end)
        )
        simulated = zip(nodes, zip(*columns, strict=True), strict=True)
        yield from _track(2 * rank + 1, f"rank {rank} simulated", simulated)


def _track(
    pid: int, name: str, nodes: Iterable[tuple[Node, tuple[float, float]]]
) -> Iterator[Event]:
    """The name of a track, its place among the others, and what happened on it."""
    label, place = {"name": name}, {"sort_index": pid}
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": label}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": place}
    for node, (start, end) in nodes:
        if node.kind == MARK:
            continue
        op, gpu = node.op, node.kind == GPU
        args: Event = {"family": node.family} if gpu else {}
        if op.collective:
            args |= {"collective": op.collective, "bytes": op.bytes, "group": op.group}
        category = "kernel" if gpu else "cuda_runtime"
        thread = f"stream {node.stream & 0xFFFFFFFF}" if gpu else "host"
        yield kineto.event(category, op.name, pid, thread, (start, end), args)


def _recording(outcome: Outcome, index: int) -> Recording:
    """The simulated run of one rank as the profiler would have recorded it; HolisticTraceAnalysis reads it."""
    replay = outcome.replay
    rank, spans = replay.graph.programs[index].rank, list(_spans(outcome, index))
    start_at_zero(spans)
    return Recording(
        path="",
        format="kineto",
        rank=rank,
        world=replay.draft.world,
        origin=0,
        device=replay.job.device,
        nccl="",
        groups={},
        spans=table_of(spans, rank),
        dropped=dropped_of((), rank),
    )


def _spans(outcome: Outcome, index: int) -> Iterator[Span]:
    """Steps, calls of the host, and GPU work, which has the number of the call that launched it."""
    run = outcome.run
    launch, start, end = (times[index][0] for times in (run.launch, run.start, run.end))
    begun: dict[str, float] = {}
    for i, node in enumerate(outcome.replay.programs[index]):
        begin, done = float(start[i]), float(end[i])
        if node.kind == MARK:
            mark, _, name = node.op.name.partition(" ")
            since = begun.setdefault(name, begin)
            if mark == "end":
                yield Span("step", name, HOST, since, done)
        elif node.kind == GPU:
            issued, number = float(launch[i]), i + 1
            call = issued - LAUNCH_CALL
            yield Span("launch", LAUNCH, HOST, call, issued, correlation=number)
            yield _kernel(node, begin, max(begin, done), number)
        else:
            issued = float(launch[i])
            yield Span("sync", node.op.name, HOST, issued, max(issued, done))


def _kernel(node: Node, start: float, end: float, number: int) -> Span:
    """GPU work, with what Kineto says of a collective on its kernel."""
    stream = node.stream & 0xFFFFFFFF if node.stream >= 0 else OWN_STREAM
    span = Span("kernel", node.op.name, stream, start, end, correlation=number)
    if node.comms:
        meeting = node.comms[0]
        group = node.op.group.partition(":")[0] or "0"
        span.collective, span.bytes = meeting.op, meeting.size
        span.group = f"{group}:{','.join(map(str, meeting.ranks))}"
    return span
