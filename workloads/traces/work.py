"""What one rank did, in the order its host issued it: GPU operations, synchronisations, step marks."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any

import pyarrow as pa

from workloads.traces.collectives import SYNCHRONISING, payload
from workloads.traces.nodes import UNTIMED
from workloads.traces.row import Row
from workloads.traces.schema import GPU_KINDS, Recording
from workloads.traces.steps import Step, steps_of

GPU, SYNC, MARK = 0, 1, 2
# A launch call this many times longer than the median one, with this many operations before it, waited for the queue.
BLOCKED, OUTSTANDING, SHORTEST = 8.0, 256, 50e-6
EPS = 2e-6  # s; clocks of host and GPU are converted into each other with about this error


@dataclass(slots=True)
class Op:
    """One operation; times in seconds of the recording.

    `issue` is when the host launched it (or came to the synchronisation), -inf before the recording began.
    """

    kind: int
    name: str
    issue: float
    start: float
    end: float
    stream: int = 0
    operator: str = ""
    collective: str = ""
    group: str = ""
    peers: str = ""
    sequence: int = -1
    bytes: float = 0.0
    correlation: int = -1
    step: int = -1
    thread: int = 0
    linked: bool = True
    blocking: bool = False  # the launch call returned only when the work was done
    shape: str = ""
    dtype: str = ""
    deps: list[int] = field(default_factory=list)
    comms: tuple[int, ...] = ()  # rendezvous, once matched
    finish: float = (
        0.0  # end as recorded, where `end` is that of all ranks of a collective
    )


@dataclass
class Work:
    """A rank's operations in program order.

    `steps` are (name, start, end) on the host; `notes` counts what had to be inferred or repaired.
    """

    rank: int
    ops: list[Op]
    steps: list[Step]
    notes: Counter[str]
    calls: dict[str, list[Row]]
    gradients: list[tuple[float, float]] = field(
        default_factory=list
    )  # (when it was ready on the host, bytes)
    path: str = ""

    @property
    def timed(self) -> bool:
        """Whether its times were recorded; else they follow from durations and order."""
        return UNTIMED not in self.notes

    def rename(self, names: Mapping[str, str]) -> None:
        """Gives steps other names; one that would have the name of another gets its rank's."""
        own = {
            name: f"{name} of rank {self.rank}"
            for name, _, _ in self.steps
            if name in set(names.values())
        }
        names = own | dict(names)
        self.steps = [
            (names.get(name, name), start, end) for name, start, end in self.steps
        ]
        for op in self.ops:
            if op.kind == MARK:
                what, _, name = op.name.partition(" ")
                op.name = f"{what} {names.get(name, name)}"

    def shift(self, offset: float) -> None:
        """Moves all times."""
        for op in self.ops:
            op.issue, op.start = op.issue + offset, op.start + offset
            op.end, op.finish = op.end + offset, op.finish + offset
        self.steps = [
            (name, start + offset, end + offset) for name, start, end in self.steps
        ]
        self.gradients = [(time + offset, size) for time, size in self.gradients]


def work_of(recording: Recording) -> Work:
    """Orders the spans of a recording by when the host issued them."""
    rows = _rows(recording)
    notes: Counter[str] = Counter(recording.repaired)
    every = [row for kind in (*GPU_KINDS, "launch", "sync") for row in rows[kind]]
    steps = steps_of(rows["step"], every, notes)
    launches: dict[int, Row] = {}
    for row in rows["launch"]:
        launches.setdefault(row.correlation, row)
    ops = _gpu_ops(rows, launches, notes)
    _describe(ops, rows, launches)
    ops += _queue_waits(ops, rows["launch"], launches, notes)
    ops += _synchronisations(ops, rows["sync"], notes)
    ops += [
        Op(
            SYNC,
            "blocking copy",
            op.issue,
            op.issue,
            launches[op.correlation].end,
            thread=op.thread,
        )
        for op in ops
        if op.blocking
    ]
    for index, (name, start, end) in enumerate(steps):
        ops += [Op(MARK, f"begin {name}", start, start, start, step=index)]
        ops += [Op(MARK, f"end {name}", end, end, end, step=index)]
    ops.sort(key=lambda op: (op.issue, op.start if op.issue == -inf else 0.0))
    begins = [start for _, start, _ in steps]
    for op in ops:
        op.finish = op.end
        if op.kind != MARK:
            op.step = bisect_right(begins, op.issue) - 1
    gradients = [(row.end, row.bytes) for row in rows["gradient"]]
    return Work(recording.rank, ops, steps, notes, rows, gradients, recording.path)


def _rows(recording: Recording) -> dict[str, list[Row]]:
    """Rows by kind. Texts are shared between rows: of each there is one."""
    rows: dict[str, list[Row]] = defaultdict(list)
    columns = [
        _values(recording.spans.column(name)) for name in ("kind", *Row.__slots__)
    ]
    for kind, *values in zip(*columns, strict=True):
        rows[kind].append(Row(*values))
    return rows


def _values(column: pa.ChunkedArray) -> list[Any]:
    found = column.combine_chunks()
    if not pa.types.is_dictionary(found.type):
        return found.to_pylist()  # type: ignore[no-any-return]
    words = found.dictionary.to_pylist()
    return [words[code] for code in found.indices.to_pylist()]


def _gpu_ops(
    rows: dict[str, list[Row]], launches: dict[int, Any], notes: Counter[str]
) -> list[Op]:
    """GPU work with its launches; work without one was launched before, or goes with what precedes it."""
    found = sorted(
        (row for kind in GPU_KINDS for row in rows[kind]), key=lambda row: row.start
    )
    ops, last = list[Op](), dict[int, Op]()
    for row in found:
        call, stream = launches.get(row.correlation), row.stream
        before = last.get(stream)
        issue = call.start if call else -inf
        if call is None and before is not None and before.linked:
            issue = before.issue
            notes[
                "GPU operations without a launch, placed after the one before them"
            ] += 1
        elif call is None:
            notes["GPU operations launched before the recording"] += 1
        if issue > row.start:
            notes[
                "GPU operations that start before their launch (launched when they start)"
            ] += 1
            issue = row.start
        if before is not None and issue < before.issue:
            issue = before.issue
            notes["launches put into the order of their stream"] += call is not None
        start, end = float(row.start), float(row.end)
        if before is not None and start < before.end:
            notes["GPU operations that overlap the one before on their stream"] += (
                before.end - start > EPS
            )
            start = min(before.end, end)
        op = Op(
            GPU,
            row.name,
            issue,
            start,
            end,
            stream,
            row.operator,
            row.collective,
            row.group,
            row.peers,
            row.sequence,
            row.bytes,
            row.correlation,
            thread=call.stream if call else 0,
            linked=call is not None or (before is not None and before.linked),
            shape=row.shape,
            dtype=row.dtype,
        )
        op.blocking = (
            call is not None and call.end >= op.end and call.end - call.start > SHORTEST
        )
        last[stream] = op
        ops.append(op)
    return ops


def _describe(
    ops: list[Op], rows: dict[str, list[Row]], launches: dict[int, Any]
) -> None:
    """What communication kernels do not say themselves, from the calls of the framework around their launch."""
    windows: dict[int, list[Row]] = defaultdict(list)
    for row in rows["communication"]:
        windows[row.stream].append(row)
    begun = {
        thread: [row.start for row in listed] for thread, listed in windows.items()
    }
    previous: dict[int, float] = {}
    for op in sorted(
        (op for op in ops if op.collective and op.correlation in launches),
        key=lambda op: op.issue,
    ):
        call = launches[op.correlation]
        thread, at = call.stream, call.start
        listed = windows[thread]
        until = bisect_right(begun.get(thread, []), at)
        since = bisect_right(begun.get(thread, []), previous.get(thread, -inf))
        previous[thread] = at
        sends = [row.peers for row in listed[since:until] if row.peers]
        around = [row for row in listed[max(0, until - 4) : until] if row.end >= at]
        if sends and op.collective in ("all_to_all", "p2p"):
            op.collective, op.peers = "p2p", ";".join(sends)
        for row in around:
            if (
                row.collective
                and row.collective not in ("wait", "p2p")
                and op.collective != "p2p"
            ):
                op.collective = row.collective
            op.group = op.group or (row.group if row.collective != "wait" else "")
            op.bytes = op.bytes or row.bytes
            if row.name.startswith("nccl:") and not op.shape:
                op.shape, op.dtype = row.shape, row.dtype


def fill_payloads(ops: list[Op], world: int) -> None:
    """Bytes of collectives from the shapes of their operators, where no metadata said them."""
    for op in ops:
        if op.collective in SYNCHRONISING or op.collective in ("broadcast", "reduce"):
            op.bytes = op.bytes or payload(op.collective, op.shape, op.dtype, world)


def _queue_waits(
    ops: list[Op], calls: list[Row], launches: dict[int, Any], notes: Counter[str]
) -> list[Op]:
    """Launch calls that waited for room in the launch queue: a synchronisation before the launch."""
    if not calls:
        return []
    usual = median(row.end - row.start for row in calls)
    ends = sorted(op.end for op in ops)
    issued = sorted(op.issue for op in ops)
    waits = []
    for op in ops:
        call = launches.get(op.correlation)
        if call is None or op.issue != call.start or op.blocking:
            continue
        took = call.end - call.start
        if took < max(SHORTEST, BLOCKED * usual):
            continue
        outstanding = bisect_right(issued, call.start) - bisect_right(ends, call.start)
        if outstanding < OUTSTANDING:
            continue
        waits.append(
            Op(
                SYNC,
                "launch queue full",
                call.start,
                call.start,
                call.end - usual,
                thread=op.thread,
            )
        )
        op.issue = call.end - usual
        notes["launches that waited for room in the launch queue"] += 1
    return waits


def _synchronisations(ops: list[Op], rows: list[Row], notes: Counter[str]) -> list[Op]:
    """Calls that hold the host until GPU work is done, and copies that return only then."""
    syncs = [
        Op(SYNC, row.name, row.start, row.start, row.end, thread=row.stream)
        for row in rows
    ]
    issues = sorted((op.issue, op.thread) for op in ops if op.issue > -inf)
    kept = []
    for sync in syncs:
        first, last = (
            bisect_right(issues, (sync.start + EPS, 1 << 62)),
            bisect_right(issues, (sync.end - EPS, 0)),
        )
        if any(thread != sync.thread for _, thread in issues[first:last]):
            notes["synchronisations of one thread while another went on, left out"] += 1
        else:
            kept.append(sync)
    return kept
