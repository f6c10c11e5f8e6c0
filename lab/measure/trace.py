"""Kernels of the profiler's trace, by the marked range of the host in which they were launched."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
MARK = "timed "
Range = tuple[float, float, str]  # begin, end, mark


@dataclass(frozen=True)
class Kernel:
    """One kernel, copy or set on the GPU; times in seconds."""

    name: str
    begin: float
    s: float
    grid: tuple[int, ...]
    block: tuple[int, ...]


def kernels_by_mark(trace: Mapping[str, Any]) -> dict[str, list[list[Kernel]]]:
    """For each mark (`MARK` taken off), the kernels of each of its ranges, in the order of the GPU.

    A launch belongs to the range of the host's clock that it lies in, whichever thread made it: autograd has its own.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    ranges = sorted(_range(event) for event in events if _marked(event))
    inside = _by_range(events, ranges)
    marked: dict[str, list[list[Kernel]]] = defaultdict(list)
    for place, (_, _, mark) in enumerate(ranges):
        marked[mark].append(sorted(inside[place], key=lambda kernel: kernel.begin))
    return dict(marked)


def _by_range(
    events: Sequence[Mapping[str, Any]], ranges: Sequence[Range]
) -> dict[int, list[Kernel]]:
    starts = [begin for begin, _, _ in ranges]
    launched = {
        event["args"].get("correlation"): event["ts"]
        for event in events
        if event.get("cat") in LAUNCHES
    }
    inside: dict[int, list[Kernel]] = defaultdict(list)
    for event in events:
        if event.get("cat") not in GPU:
            continue
        at = launched.get(event["args"].get("correlation"), -1.0)
        place = bisect.bisect_right(starts, at) - 1
        if place >= 0 and at <= ranges[place][1]:
            inside[place].append(_kernel(event))
    return inside


def _marked(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "user_annotation" and event["name"].startswith(MARK)


def _range(event: Mapping[str, Any]) -> Range:
    return event["ts"], event["ts"] + event["dur"], event["name"].removeprefix(MARK)


def _kernel(event: Mapping[str, Any]) -> Kernel:
    about = event["args"]
    grid, block = tuple(about.get("grid", ())), tuple(about.get("block", ()))
    return Kernel(event["name"], event["ts"] * 1e-6, event["dur"] * 1e-6, grid, block)
