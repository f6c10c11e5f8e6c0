"""Puts the spans of a recording into the order in which the host issued them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any

import pyarrow as pa

from prestep.workloads.traces.schema import GPU_KINDS, Recording, Span
from prestep.workloads.traces.steps import Step, steps_of
from prestep.workloads.traces.work import EPS, GPU, MARK, SYNC, Op, Work

# A launch call this many times longer than the median one, with this many operations before it, waited for the queue.
BLOCKED, OUTSTANDING, SHORTEST = 8.0, 256, 50e-6


def work_of(recording: Recording) -> Work:
    """Orders the spans of a recording by when the host issued them."""
    rows = _rows(recording)
    notes: Counter[str] = Counter(recording.repaired)
    timeline = [row for kind in (*GPU_KINDS, "launch", "sync") for row in rows[kind]]
    steps = steps_of(rows["step"], timeline, notes)
    launches: dict[int, Span] = {}
    for row in rows["launch"]:
        launches.setdefault(row.correlation, row)
    ops = _gpu_ops(rows, launches, notes)
    _describe(ops, rows, launches)
    ops += _queue_waits(ops, rows["launch"], launches, notes)
    ops += _synchronisations(ops, rows["sync"], notes)
    ops += _blocking_copies(ops, launches)
    ops += _marks(steps)
    ops.sort(key=_program_order)
    _assign_steps(ops, steps)
    gradients = [(row.end, row.bytes) for row in rows["gradient"]]
    return Work(recording.rank, ops, steps, notes, rows, gradients, recording.path)


def _blocking_copies(ops: list[Op], launches: dict[int, Span]) -> list[Op]:
    """A synchronisation after every launch call that returned only when its work was done."""
    copies = []
    for op in ops:
        if op.blocking:
            back = launches[op.correlation].end
            copies.append(
                Op(SYNC, "blocking copy", op.issue, op.issue, back, thread=op.thread)
            )
    return copies


def _marks(steps: list[Step]) -> list[Op]:
    marks = []
    for index, (name, start, end) in enumerate(steps):
        marks.append(Op(MARK, f"begin {name}", start, start, start, step=index))
        marks.append(Op(MARK, f"end {name}", end, end, end, step=index))
    return marks


def _program_order(op: Op) -> tuple[float, float]:
    """By launch; what was launched before the recording goes by its start."""
    return (op.issue, op.start if op.issue == -inf else 0.0)


def _assign_steps(ops: list[Op], steps: list[Step]) -> None:
    """Gives every operation the step in which it was issued."""
    begins = [start for _, start, _ in steps]
    for op in ops:
        op.finish = op.end
        if op.kind != MARK:
            op.step = bisect_right(begins, op.issue) - 1


def _rows(recording: Recording) -> dict[str, list[Span]]:
    """Rows by kind. Texts are shared between rows: of each there is one."""
    rows: dict[str, list[Span]] = defaultdict(list)
    columns = [_values(recording.spans.column(name)) for name in Span.__slots__]
    for values in zip(*columns, strict=True):
        rows[values[0]].append(Span(*values))
    return rows


def _values(column: pa.ChunkedArray) -> list[Any]:
    values = column.combine_chunks()
    if not pa.types.is_dictionary(values.type):
        return values.to_pylist()  # type: ignore[no-any-return]
    words = values.dictionary.to_pylist()
    return [words[code] for code in values.indices.to_pylist()]


def _gpu_ops(
    rows: dict[str, list[Span]], launches: dict[int, Span], notes: Counter[str]
) -> list[Op]:
    """GPU work in the order of its starts, with its launches."""
    recorded = sorted(
        (row for kind in GPU_KINDS for row in rows[kind]), key=lambda row: row.start
    )
    ops, last = list[Op](), dict[int, Op]()
    for row in recorded:
        call = launches.get(row.correlation)
        op = _gpu_op(row, call, last.get(row.stream), notes)
        last[row.stream] = op
        ops.append(op)
    return ops


def _gpu_op(row: Span, call: Span | None, before: Op | None, notes: Counter[str]) -> Op:
    """An operation, its launch call, and the operation before it on its stream."""
    issue = _issue(row, call, before, notes)
    start, end = _start(row, before, notes), float(row.end)
    return Op(
        GPU,
        row.name,
        issue,
        start,
        end,
        row.stream,
        row.operator,
        row.collective,
        row.group,
        row.peers,
        row.sequence,
        row.bytes,
        row.correlation,
        thread=call.stream if call else 0,
        linked=call is not None or (before is not None and before.linked),
        blocking=_blocks(call, end),
        shape=row.shape,
        dtype=row.dtype,
    )


def _issue(
    row: Span, call: Span | None, before: Op | None, notes: Counter[str]
) -> float:
    """When the host launched it; work without a launch goes with what precedes it, or was launched before."""
    issue = call.start if call else -inf
    if call is None and before is not None and before.linked:
        issue = before.issue
        notes["GPU operations without a launch, placed after the one before them"] += 1
    elif call is None:
        notes["GPU operations launched before the recording"] += 1
    if issue > row.start:
        issue = row.start
        notes[
            "GPU operations that start before their launch (launched when they start)"
        ] += 1
    if before is not None and issue < before.issue:
        issue = before.issue
        notes["launches put into the order of their stream"] += call is not None
    return issue


def _start(row: Span, before: Op | None, notes: Counter[str]) -> float:
    """When it started: not before the end of the operation before it on its stream."""
    start = float(row.start)
    if before is None or start >= before.end:
        return start
    notes["GPU operations that overlap the one before on their stream"] += (
        before.end - start > EPS
    )
    return min(before.end, float(row.end))


def _blocks(call: Span | None, end: float) -> bool:
    """Whether the launch call returned only after the work had ended."""
    return call is not None and call.end >= end and call.end - call.start > SHORTEST


@dataclass
class _Calls:
    """The framework's communication calls of one thread, in the order of their starts."""

    rows: list[Span] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    def add(self, row: Span) -> None:
        """Appends a call."""
        self.rows.append(row)
        self.starts.append(row.start)

    def between(self, earlier: float, later: float) -> list[Span]:
        """Calls that began after one time, and not after another."""
        since = bisect_right(self.starts, earlier)
        return self.rows[since : bisect_right(self.starts, later)]

    def under_way(self, time: float) -> list[Span]:
        """Of the last four calls that had begun, those that had not ended."""
        until = bisect_right(self.starts, time)
        return [row for row in self.rows[max(0, until - 4) : until] if row.end >= time]


def _describe(
    ops: list[Op], rows: dict[str, list[Span]], launches: dict[int, Span]
) -> None:
    """Fills in what communication kernels do not say themselves, from the framework's calls around their launch."""
    threads: dict[int, _Calls] = defaultdict(_Calls)
    for row in rows["communication"]:
        threads[row.stream].add(row)
    previous: dict[int, float] = {}
    for op in _launched_communication(ops, launches):
        launch = launches[op.correlation]
        calls = threads[launch.stream]
        _take_peers(op, calls.between(previous.get(launch.stream, -inf), launch.start))
        previous[launch.stream] = launch.start
        for call in calls.under_way(launch.start):
            _take_metadata(op, call)


def _launched_communication(ops: list[Op], launches: dict[int, Span]) -> list[Op]:
    """Communication kernels whose launch was recorded, in the order of their launches."""
    kernels = [op for op in ops if op.collective and op.correlation in launches]
    return sorted(kernels, key=lambda op: op.issue)


def _take_peers(op: Op, calls: list[Span]) -> None:
    """Sends and receives of the calls since the last launch are in one kernel."""
    peers = [row.peers for row in calls if row.peers]
    if peers and op.collective in ("all_to_all", "p2p"):
        op.collective, op.peers = "p2p", ";".join(peers)


def _take_metadata(op: Op, call: Span) -> None:
    """What a call that was under way at the launch says of the kernel."""
    if call.collective not in ("", "wait", "p2p") and op.collective != "p2p":
        op.collective = call.collective
    op.group = op.group or (call.group if call.collective != "wait" else "")
    op.bytes = op.bytes or call.bytes
    if call.name.startswith("nccl:") and not op.shape:
        op.shape, op.dtype = call.shape, call.dtype


def _queue_waits(
    ops: list[Op], calls: list[Span], launches: dict[int, Span], notes: Counter[str]
) -> list[Op]:
    """Launch calls that waited for room in the launch queue: a synchronisation before the launch."""
    if not calls:
        return []
    usual = median(row.end - row.start for row in calls)
    ends = sorted(op.end for op in ops)
    issued = sorted(op.issue for op in ops)
    waits = []
    for op in _slow_launches(ops, launches, max(SHORTEST, BLOCKED * usual)):
        start, room = op.issue, launches[op.correlation].end - usual
        outstanding = bisect_right(issued, start) - bisect_right(ends, start)
        if outstanding < OUTSTANDING:
            continue
        waits.append(
            Op(SYNC, "launch queue full", start, start, room, thread=op.thread)
        )
        op.issue = room
        notes["launches that waited for room in the launch queue"] += 1
    return waits


def _slow_launches(
    ops: list[Op], launches: dict[int, Span], shortest: float
) -> list[Op]:
    """Operations whose launch call took at least `shortest`, though it did not wait for their end."""
    slow = []
    for op in ops:
        call = launches.get(op.correlation)
        launched = call is not None and op.issue == call.start and not op.blocking
        if call is not None and launched and call.end - call.start >= shortest:
            slow.append(op)
    return slow


def _synchronisations(ops: list[Op], rows: list[Span], notes: Counter[str]) -> list[Op]:
    """Calls that hold the host until GPU work is done."""
    issues = sorted((op.issue, op.thread) for op in ops if op.issue > -inf)
    syncs = []
    for row in rows:
        first = bisect_right(issues, (row.start + EPS, 1 << 62))
        last = bisect_right(issues, (row.end - EPS, 0))
        if any(thread != row.stream for _, thread in issues[first:last]):
            notes["synchronisations of one thread while another went on, left out"] += 1
            continue
        syncs.append(
            Op(SYNC, row.name, row.start, row.start, row.end, thread=row.stream)
        )
    return syncs
