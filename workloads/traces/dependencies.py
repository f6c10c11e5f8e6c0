"""Who waits for whom on one rank: events between streams, and the host for the GPU.

Streams run their operations in order and nothing starts before its launch; that needs no entry. The other waits are

* `cuda_sync` events, which name both streams and the recorded event, where the profiler wrote them;
* else calls of cudaStreamWaitEvent, which do not name them: before a collective its stream waits for the stream that
  made the data; elsewhere the next operation waits for what was last issued to the other streams. An edge that the
  recorded times contradict is left out;
* data that goes between streams, where an execution trace of the run is given too;
* collectives of one communicator run one after the other, as NCCL sees to;
* else, for gaps that nothing explains, the operation of another stream that ended just before: inferred, and counted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from math import inf

from prestep.workloads.traces.schema import Span
from prestep.workloads.traces.work import EPS, GPU, SYNC, Op, Work

# A start this soon after the end of another stream's operation follows from it, if nothing else explains it.
SOON = 10e-6
UNEXPLAINED = 20e-6
BY_ORDER = "waits of a stream, by their order"


def connect(work: Work) -> None:
    """Fills `Op.deps` of a rank."""
    exact = [row for row in work.calls["wait"] if row.operator == "cuda_sync"]
    communication = _communication_streams(work)
    if exact:
        _from_events(work, exact)
    else:
        _collectives_wait(work, communication)
        _from_calls(work, communication)
    _from_data(work)
    _same_communicator(work)
    _infer(work, communication)
    _host_waits(work)


def _communication_streams(work: Work) -> set[int]:
    """Streams on which only communication runs."""
    streams = {op.stream for op in work.ops if op.kind == GPU}
    computing = {op.stream for op in work.ops if op.kind == GPU and not op.collective}
    return streams - computing


@dataclass
class _Launched:
    """Operations of a stream in the order of their launches."""

    indices: list[int] = field(default_factory=list)
    issues: list[float] = field(default_factory=list)

    def first_since(self, time: float) -> int | None:
        """The first operation launched at or after a time."""
        at = bisect_left(self.issues, time)
        return self.indices[at] if at < len(self.indices) else None

    def last_until(self, time: float) -> int | None:
        """The last operation launched at or before a time."""
        at = bisect_right(self.issues, time)
        return self.indices[at - 1] if at else None


def _by_stream(work: Work) -> dict[int, _Launched]:
    streams: dict[int, _Launched] = {}
    for index, op in enumerate(work.ops):
        if op.kind == GPU:
            launched = streams.setdefault(op.stream, _Launched())
            launched.indices.append(index)
            launched.issues.append(op.issue)
    return streams


def _from_events(work: Work, rows: list[Span]) -> None:
    """Edges of `cuda_sync` events: what a stream runs after the call waits for the last before the record."""
    calls = [row for row in work.calls["wait"] if row.operator != "cuda_sync"]
    called = {row.correlation: row.start for row in calls}
    recorded = {row.correlation: row.start for row in work.calls["record"]}
    streams = _by_stream(work)
    for row in rows:
        call, record = called.get(row.correlation), recorded.get(row.sequence)
        waiting, awaited = streams.get(row.stream), streams.get(row.target)
        if call is None or record is None or waiting is None or awaited is None:
            work.notes["event waits whose calls were not recorded, left out"] += 1
            continue
        before, after = awaited.last_until(record), waiting.first_since(call)
        if before is not None and after is not None:
            _edge(work, before, after, "event waits")


def _edge(work: Work, before: int, after: int, why: str) -> bool:
    """Adds a dependency unless the recorded times contradict it."""
    first, then = work.ops[before], work.ops[after]
    if before >= after or first.end > then.start + EPS:
        work.notes[f"{why} that the recorded times contradict, left out"] += 1
        return False
    if before not in then.deps:
        then.deps.append(before)
    work.notes[why] += 1
    return True


def _collectives_wait(work: Work, communication: set[int]) -> None:
    """A collective on a stream of its own waits for what the framework issued before it."""
    last = -1
    for index, op in enumerate(work.ops):
        if op.kind != GPU:
            continue
        if op.stream not in communication:
            last = index
        elif last >= 0 and op.issue > -inf:
            _edge(
                work,
                last,
                index,
                "collectives that wait for the operation issued before them",
            )


def _from_data(work: Work) -> None:
    """Edges of an execution trace: an operation on one stream reads what one on another has written."""
    rows = work.calls["data"]
    if not rows:
        return
    at = {op.correlation: index for index, op in enumerate(work.ops) if op.kind == GPU}
    for row in rows:
        before, after = at.get(row.sequence, -1), at.get(row.correlation, -1)
        if before >= 0 and after >= 0:
            _edge(
                work,
                before,
                after,
                "data of an execution trace that goes between streams",
            )


def _same_communicator(work: Work) -> None:
    """Collectives of one communicator run in the order of their launch, on whatever streams they are (NCCL's rule)."""
    last: dict[str, int] = {}
    for index, op in enumerate(work.ops):
        if op.kind == GPU and op.collective and op.collective != "p2p" and op.group:
            before = last.get(op.group, -1)
            if before >= 0 and work.ops[before].stream != op.stream:
                _edge(
                    work,
                    before,
                    index,
                    "collectives that wait for the one before in their group",
                )
            last[op.group] = index


def _from_calls(work: Work, communication: set[int]) -> None:
    """The first operation issued after a wait call waits for what was last issued to the other streams."""
    waits = waits_of_compute(work)
    passed, awaited = 0, dict[tuple[int, int], int]()
    issued: dict[int, list[int]] = {}
    for index, op in enumerate(work.ops):
        if op.kind != GPU:
            continue
        if op.stream not in communication:
            before, passed = passed, bisect_right(waits, op.issue, lo=passed)
            if passed > before:
                _wait_for_others(work, index, issued, communication, awaited)
        issued.setdefault(op.stream, []).append(index)


def _wait_for_others(
    work: Work,
    index: int,
    issued: dict[int, list[int]],
    communication: set[int],
    awaited: dict[tuple[int, int], int],
) -> None:
    """Lets an operation wait for the other streams.

    `awaited` is the last operation of a stream (second) that each stream (first) has waited for.
    """
    op = work.ops[index]
    for stream in [other for other in issued if other != op.stream]:
        since = awaited.get((op.stream, stream), -1)
        recent = [i for i in issued[stream][-64:] if i > since]
        last = _awaited(work, op, recent, stream in communication)
        if last >= 0 and _edge(work, last, index, BY_ORDER):
            awaited[op.stream, stream] = last


def _awaited(work: Work, op: Op, listed: list[int], communication: bool) -> int:
    """The operation of another stream that `op` waits for: the last one issued there that had ended."""
    if communication and "split_with_sizes_copy" in op.operator:
        gathers = [i for i in listed if work.ops[i].collective == "all_gather"]
        listed = gathers or listed
    for index in reversed(listed):
        if work.ops[index].end <= op.start + EPS:
            return index
        if not communication:
            break
    return -1


def _infer(work: Work, communication: set[int]) -> None:
    """Gaps that nothing explains: the operation waits for the one that ended just before on another stream."""
    ops = work.ops
    ends = sorted((op.end, i) for i, op in enumerate(ops) if op.kind == GPU)
    last: dict[int, float] = {}
    for index, op in enumerate(ops):
        if op.kind != GPU:
            continue
        previous = last.get(op.stream, -inf)
        ready = max([op.issue, previous, *(ops[d].end for d in op.deps)])
        last[op.stream] = op.end
        explained = ready == -inf or op.start - ready < UNEXPLAINED
        if explained or op.stream in communication:
            continue
        before = _ended_just_before(ops, index, ends)
        if before >= 0:
            _edge(work, before, index, "waits between streams inferred from times")


def _ended_just_before(ops: list[Op], index: int, ends: list[tuple[float, int]]) -> int:
    """The last earlier operation of another stream that ended when this one starts; -1 if there is none."""
    op = ops[index]
    low = bisect_left(ends, (op.start - SOON, -1))
    high = bisect_right(ends, (op.start + EPS, 1 << 62))
    for _, before in reversed(ends[low:high]):
        if before < index and ops[before].stream != op.stream:
            return before
    return -1


def _host_waits(work: Work) -> None:
    """What every synchronisation of the host waited for."""
    latest: dict[int, int] = {}
    ends = sorted((op.end, i) for i, op in enumerate(work.ops) if op.kind == GPU)
    for index, op in enumerate(work.ops):
        if op.kind == GPU:
            latest[op.stream] = index
        elif op.kind == SYNC and ("Device" in op.name or "Ctx" in op.name):
            # The whole GPU is waited for: the last operation of every stream.
            op.deps += [i for i in latest.values() if work.ops[i].end <= op.end + EPS]
        elif op.kind == SYNC:
            ended = _ended_during(op, index, ends)
            work.notes["synchronisations that found their work done"] += not ended
            op.deps += ended[-1:]


def _ended_during(op: Op, index: int, ends: list[tuple[float, int]]) -> list[int]:
    """Earlier operations that ended while the host waited."""
    low = bisect_left(ends, (op.start, -1))
    high = bisect_right(ends, (op.end + EPS, 1 << 62))
    return [i for _, i in ends[low:high] if i < index]


def waits_of_compute(work: Work) -> list[float]:
    """Times of wait calls that are not a collective's own: not around its launch, and not NCCL's after it."""
    calls = _calls_in_order(work)
    windows = _own_windows(work, [row for kind, row in calls if kind == "nccl"])
    before: dict[int, list[str]] = {}
    waits = []
    for kind, row in calls:
        recent = before.setdefault(row.stream, ["", ""])
        after_nccl = recent == ["nccl", "record"]
        if kind == "wait" and not after_nccl and not _lies_in(row, windows):
            waits.append(row.start)
        before[row.stream] = [recent[1], kind]
    return waits


def _calls_in_order(work: Work) -> list[tuple[str, Span]]:
    """Waits, records and launches by time; launches of collectives are "nccl"."""
    collectives = {op.correlation for op in work.ops if op.collective}
    calls = [(kind, row) for kind in ("wait", "record") for row in work.calls[kind]]
    for row in work.calls["launch"]:
        calls.append(("nccl" if row.correlation in collectives else "launch", row))
    calls.sort(key=lambda call: float(call[1].start))
    return calls


def _lies_in(row: Span, windows: dict[int, list[tuple[float, float]]]) -> bool:
    """Whether a call lies in one of the last windows that its thread opened before it."""
    opened = windows.get(row.stream, [])
    at = bisect_right(opened, (row.start, inf))
    recent = opened[max(0, at - 4) : at]
    return any(start <= row.start <= end for start, end in recent)


def _own_windows(
    work: Work, launches: list[Span]
) -> dict[int, list[tuple[float, float]]]:
    """Calls of the framework that issue communication, by thread; those that only wait for it are not among them."""
    starts: dict[int, list[float]] = {}
    for row in launches:
        starts.setdefault(row.stream, []).append(row.start)
    windows: dict[int, list[tuple[float, float]]] = {}
    for row in work.calls["communication"]:
        listed = starts.get(row.stream, [])
        at = bisect_left(listed, row.start)
        launches_inside = at < len(listed) and listed[at] <= row.end
        if row.collective not in ("wait", "") or launches_inside:
            windows.setdefault(row.stream, []).append((row.start, row.end))
    return windows
