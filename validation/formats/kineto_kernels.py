"""Kernel calls in a Kineto trace: which aten operation, at which shape, for how long on the GPU.

One `Call` is one aten operation as the GPU saw it: from the start of its first kernel to the end of its last,
with the gaps inside clipped (a gap longer than the pipeline's own is the host's, and the host is modelled apart).
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from prestep.sim.graph.kernel import PREFIX, Kernel
from prestep.validation.formats.kineto_operations import Event, classify

INNER_GAP = 1.6e-6  # s, between kernels of one operation; measured: mean of back-to-back gaps in 1b-single-b2
GPU_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
ELSEWHERE = ("nccl", "HtoD", "DtoH")  # bound by links, not by the GPU
HALVED = (
    f"{PREFIX}_fused_rms_norm_backward",
    f"{PREFIX}native_layer_norm_backward",
)


@dataclass(frozen=True)
class Call:
    """One aten operation on one stream; `duration` in s; `overlapped` if an NCCL kernel ran meanwhile."""

    kernel: Kernel
    duration: float
    overlapped: bool
    parts: int
    start: float


def read_events(path: Path) -> list[Event]:
    """The `traceEvents` of a (gzipped) Kineto trace."""
    raw = path.read_bytes()
    return list(
        json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)["traceEvents"]
    )


def read_calls(
    path: Path, kernel_of: Callable[[Event], Kernel | None] = classify
) -> Iterator[Call]:
    """Calls of the profiled steps; kernels launched before profiling began have no operation and are left out."""
    events = read_events(path)
    owners = operations(events)
    on_gpu = [event for event in events if event.get("cat") in GPU_EVENTS]
    running = sorted(on_gpu, key=lambda event: event["ts"])
    nccl = [_interval([event]) for event in running if "nccl" in event["name"]]
    for owner, parts in _by_operation(running, owners):
        named = kernel_of(owners[owner])
        if named is None:
            continue
        for kernel, mine in _with_halves(named, parts):
            start, end = _interval(mine)
            overlapped = _touches(nccl, start, end)
            yield Call(kernel, _length(mine), overlapped, len(mine), start * 1e-6)


def operations(events: list[Event]) -> dict[int, Event]:
    """Operations of the host by the id that their kernels carry."""
    return {
        event["args"]["External id"]: event
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in event["args"]
    }


def _interval(parts: list[Event]) -> tuple[float, float]:
    """Start of the first event and end of the last one, us."""
    return parts[0]["ts"], parts[-1]["ts"] + parts[-1]["dur"]


def _by_operation(
    running: list[Event], ops: dict[int, Event]
) -> Iterator[tuple[int, list[Event]]]:
    """Kernels of each operation and stream but NCCL's and copies over PCIe, by the operation's id."""
    grouped: dict[tuple[int, int], list[Event]] = {}
    for event in running:
        owner = event["args"].get("External id")
        apart = any(word in event["name"] for word in ELSEWHERE)
        if owner in ops and not apart:
            grouped.setdefault((owner, event["args"]["stream"]), []).append(event)
    for (owner, _), parts in grouped.items():
        yield owner, parts


def _with_halves(
    kernel: Kernel, parts: list[Event]
) -> list[tuple[Kernel, list[Event]]]:
    """One operation as the workloads launch it: a norm's backward also as its halves."""
    if kernel.kind in HALVED and len(parts) == 2:
        halves = (replace(kernel, layout=part) for part in ("untrained", "weights"))
        return [
            (kernel, parts),
            *((half, [part]) for half, part in zip(halves, parts, strict=True)),
        ]
    return [(kernel, parts)]


def _length(parts: list[Event]) -> float:
    busy: float = sum(p["dur"] for p in parts) * 1e-6
    gaps = (b["ts"] - a["ts"] - a["dur"] for a, b in pairwise(parts))
    inner: float = sum(min(max(gap * 1e-6, 0.0), INNER_GAP) for gap in gaps)
    return busy + inner


def _touches(intervals: list[tuple[float, float]], start: float, end: float) -> bool:
    # NCCL kernels of one rank hardly overlap each other, so looking a few intervals back is enough.
    at = bisect_left(intervals, (end, 0.0))
    return any(b > start for _, b in intervals[max(0, at - 8) : at])
