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
from math import inf

from workloads.traces.row import Row
from workloads.traces.work import EPS, GPU, SYNC, Op, Work

# A start this soon after the end of another stream's operation follows from it, if nothing else explains it.
SOON = 10e-6
UNEXPLAINED = 20e-6


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
    kinds: dict[int, bool] = {}
    for op in work.ops:
        if op.kind == GPU:
            kinds[op.stream] = kinds.get(op.stream, True) and bool(op.collective)
    return {stream for stream, only in kinds.items() if only}


def _from_events(work: Work, rows: list[Row]) -> None:
    """Edges of `cuda_sync` events: what a stream runs after the call waits for the last before the record."""
    called = {
        row.correlation: row.start
        for row in work.calls["wait"]
        if row.operator != "cuda_sync"
    }
    recorded = {row.correlation: row.start for row in work.calls["record"]}
    streams: dict[int, list[int]] = {}
    for index, op in enumerate(work.ops):
        if op.kind == GPU:
            streams.setdefault(op.stream, []).append(index)
    issues = {
        stream: [work.ops[i].issue for i in listed]
        for stream, listed in streams.items()
    }
    for row in rows:
        waits, of = called.get(row.correlation), recorded.get(row.sequence)
        if (
            waits is None
            or of is None
            or row.stream not in streams
            or row.target not in streams
        ):
            work.notes["event waits whose calls were not recorded, left out"] += 1
            continue
        after = bisect_left(issues[row.stream], waits)
        before = bisect_right(issues[row.target], of) - 1
        if after < len(issues[row.stream]) and before >= 0:
            _edge(
                work,
                streams[row.target][before],
                streams[row.stream][after],
                "event waits",
            )


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
    waits = _waits_of_compute(work)
    at, known = 0, dict[tuple[int, int], int]()
    issued: dict[int, list[int]] = {}
    for index, op in enumerate(work.ops):
        if op.kind != GPU:
            continue
        called = -inf
        while (
            op.stream not in communication and at < len(waits) and waits[at] <= op.issue
        ):
            called, at = waits[at], at + 1
        if called > -inf:
            for stream, listed in issued.items():
                if stream != op.stream:
                    since = known.get((op.stream, stream), -1)
                    found = _awaited(
                        work,
                        op,
                        [i for i in listed[-64:] if i > since],
                        stream in communication,
                    )
                    if found >= 0 and _edge(
                        work, found, index, "waits of a stream, by their order"
                    ):
                        known[op.stream, stream] = found
        issued.setdefault(op.stream, []).append(index)


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


def _waits_of_compute(work: Work) -> list[float]:
    """Times of wait calls that are not a collective's own: not around its launch, and not NCCL's after it."""
    launched = {op.correlation for op in work.ops if op.collective}
    calls = [("wait", r) for r in work.calls["wait"]] + [
        ("record", r) for r in work.calls["record"]
    ]
    calls += [
        ("nccl" if r.correlation in launched else "launch", r)
        for r in work.calls["launch"]
    ]
    calls.sort(key=lambda call: float(call[1].start))
    windows = _own_windows(work, [row for kind, row in calls if kind == "nccl"])
    before: dict[int, list[str]] = {}
    found = []
    for kind, row in calls:
        recent = before.setdefault(row.stream, ["", ""])
        if kind == "wait" and recent != ["nccl", "record"]:
            listed = windows.get(row.stream, [])
            at = bisect_right(listed, (row.start, inf))
            if not any(
                start <= row.start <= end for start, end in listed[max(0, at - 4) : at]
            ):
                found.append(row.start)
        before[row.stream] = [recent[1], kind]
    return found


def _own_windows(
    work: Work, launches: list[Row]
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


def _infer(work: Work, communication: set[int]) -> None:
    """Gaps that nothing explains: the operation waits for the one that ended just before on another stream."""
    ends = sorted((op.end, i) for i, op in enumerate(work.ops) if op.kind == GPU)
    last: dict[int, float] = {}
    for index, op in enumerate(work.ops):
        if op.kind != GPU:
            continue
        ready = max(
            [op.issue, last.get(op.stream, -inf), *(work.ops[d].end for d in op.deps)]
        )
        last[op.stream] = op.end
        if (
            ready == -inf
            or op.start - ready < UNEXPLAINED
            or op.stream in communication
        ):
            continue
        low, high = (
            bisect_left(ends, (op.start - SOON, -1)),
            bisect_right(ends, (op.start + EPS, 1 << 62)),
        )
        near = [
            i
            for _, i in ends[low:high]
            if work.ops[i].stream != op.stream and i < index
        ]
        if near:
            _edge(work, near[-1], index, "waits between streams inferred from times")


def _host_waits(work: Work) -> None:
    """What every synchronisation of the host waited for."""
    latest: dict[int, int] = {}
    done: list[tuple[float, int]] = []
    ends = sorted((op.end, i) for i, op in enumerate(work.ops) if op.kind == GPU)
    times = [end for end, _ in ends]
    for index, op in enumerate(work.ops):
        if op.kind == GPU:
            latest[op.stream] = index
        elif op.kind == SYNC:
            if "Device" in op.name or "Ctx" in op.name:
                listed = [i for i in latest.values() if work.ops[i].end <= op.end + EPS]
            else:
                done = ends[
                    bisect_left(times, op.start) : bisect_right(times, op.end + EPS)
                ]
                listed = [i for _, i in done if i < index][-1:]
                work.notes["synchronisations that found their work done"] += not listed
            op.deps.extend(listed)
