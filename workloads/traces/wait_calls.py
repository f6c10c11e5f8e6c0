"""Calls of cudaStreamWaitEvent that let compute wait: those that a collective does not make for itself."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf

from prestep.workloads.traces.row import Row
from prestep.workloads.traces.work import Work


def waits_of_compute(work: Work) -> list[float]:
    """Times of wait calls that are not a collective's own: not around its launch, and not NCCL's after it."""
    calls = _calls_in_order(work)
    windows = _own_windows(work, [row for kind, row in calls if kind == "nccl"])
    before: dict[int, list[str]] = {}
    waits = []
    for kind, row in calls:
        recent = before.setdefault(row.stream, ["", ""])
        after_nccl = recent == ["nccl", "record"]
        if kind == "wait" and not after_nccl and not _inside(row, windows):
            waits.append(row.start)
        before[row.stream] = [recent[1], kind]
    return waits


def _calls_in_order(work: Work) -> list[tuple[str, Row]]:
    """Waits, records and launches by time; launches of collectives are "nccl"."""
    collectives = {op.correlation for op in work.ops if op.collective}
    calls = [(kind, row) for kind in ("wait", "record") for row in work.calls[kind]]
    for row in work.calls["launch"]:
        calls.append(("nccl" if row.correlation in collectives else "launch", row))
    calls.sort(key=lambda call: float(call[1].start))
    return calls


def _inside(row: Row, windows: dict[int, list[tuple[float, float]]]) -> bool:
    """Whether a call lies in one of the last windows that its thread opened before it."""
    opened = windows.get(row.stream, [])
    at = bisect_right(opened, (row.start, inf))
    recent = opened[max(0, at - 4) : at]
    return any(start <= row.start <= end for start, end in recent)


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
