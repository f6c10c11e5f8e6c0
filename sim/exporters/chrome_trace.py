"""The timeline as a trace of PyTorch's profiler (Kineto): opens in Perfetto, and Meta's HolisticTraceAnalysis reads it.

A path that ends in .json or .json.gz gets all ranks in one file, one process per rank. A folder gets one file per rank
(rank0.json.gz, ...), which is what HolisticTraceAnalysis wants. The format follows libkineto/src/output_json.cpp:
ts and dur in microseconds, a launch on the host thread linked to its kernel by `correlation` and an ac2g arrow,
ProfilerStep#N around each step on the host thread. The host's events are drawn from the launch times, which is all a
timeline knows of it: a call ends at the launch time and starts at most `CALL` before.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prestep.sim import files
from prestep.sim.analysis.link_use import LinkLoad
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.spans import MOST, with_kernels
from prestep.sim.analysis.timeline import COMMUNICATION, Timeline, group_ranks
from prestep.sim.errors import PrestepError
from prestep.sim.exporters import _trace_across as across
from prestep.sim.exporters._trace_events import Event, events, rows

SUFFIXES = (".json", ".json.gz", "/")


def write(
    result: Prediction,
    path: str | Path,
    window: tuple[float, float] | None = None,
    ranks: Collection[int] | None = None,
    kernels: float = MOST,
) -> str:
    """Write one file with all ranks, or into a folder one file per rank.

    Of a large run only spans that reach into `window` (seconds), and only these `ranks`. Rows of layers are opened into
    at most so many `kernels`; returns which are.

    Raises
    ------
    PrestepError
        If the result has no timeline, or nothing of it is asked for.
    """
    if result.timeline is None or len(result.timeline) == 0:
        raise PrestepError(f"{path}: the result has no timeline to write")
    result, said = with_kernels(_part(result, window, ranks), kernels)
    result = _part(result, window, ranks)
    timeline, target = result.timeline, Path(path)
    if timeline is None or len(timeline) == 0:
        raise PrestepError(
            f"{path}: nothing of the timeline is in that window on those ranks"
        )
    if target.suffix and not target.is_dir():
        _save(target, render(result, None, window))
        return said
    target.mkdir(parents=True, exist_ok=True)
    for rank in timeline.ranks:
        _save(target / f"rank{rank}.json.gz", render(result, int(rank), window))
    return said


def _part(
    result: Prediction,
    window: tuple[float, float] | None,
    ranks: Collection[int] | None,
) -> Prediction:
    """The result with a part of its timeline and of its links' loads; a rank that stands for others is asked by any."""
    timeline = result.timeline
    if timeline is None or (window is None and ranks is None):
        return result
    loads = result.link_loads
    if ranks is not None:
        alike = {} if result.details is None else result.details.represents
        wanted = [
            r
            for r in timeline.ranks
            if any(m in ranks for m in alike.get(int(r), (int(r),)))
        ]
        timeline = timeline.select(np.isin(timeline["rank"], wanted))
    if window is not None:
        timeline = timeline.window(*window)
        loads = tuple(_load_in(load, window) for load in loads)
    return replace(result, timeline=timeline, link_loads=loads)


def _load_in(load: LinkLoad, window: tuple[float, float]) -> LinkLoad:
    """A link's load in a window, with what it carries as the window begins."""
    before = max(0, int(np.searchsorted(load.time, window[0], "right")) - 1)
    inside = slice(before, int(np.searchsorted(load.time, window[1], "left")))
    return replace(
        load, time=np.maximum(load.time[inside], window[0]), load=load.load[inside]
    )


def render(
    result: Prediction,
    rank: int | None = None,
    window: tuple[float, float] | None = None,
) -> str:
    """The trace as JSON text, one event per line: of one rank, or of all; counters of memory in `window` (seconds)."""
    timeline = result.timeline
    if timeline is None:
        raise PrestepError("chrome_trace: the result has no timeline")
    header = _header(result, timeline, rank)
    # json.dumps puts a space after the colon: HolisticTraceAnalysis finds the rank with the pattern `"rank":\s+(\d+)`.
    lines = [
        f"{json.dumps(key)}: {json.dumps(value)}," for key, value in header.items()
    ]
    events_of_ranks = _all_events(result, timeline, rank, window)
    body = ",\n".join(msgspec.json.encode(event).decode() for event in events_of_ranks)
    return "{\n" + "\n".join(lines) + '\n"traceEvents": [\n' + body + "\n]}\n"


def _all_events(
    result: Prediction,
    timeline: Timeline,
    rank: int | None,
    window: tuple[float, float] | None,
) -> Iterator[Event]:
    """Events of one rank; of all, and then what lies across them."""
    ranks = _ranks(timeline, rank)
    groups = _groups(timeline)
    # Names first: who reads a large file in pieces learns from them that it is of several ranks.
    for one in ranks:
        yield from rows(result, timeline, one)
    for one in ranks:
        yield from events(result, timeline, one, groups)
    for one in ranks:
        yield from across.memory(result, one, window)
    if rank is None:
        yield from across.flows(timeline)
        yield from across.links(result)


def _ranks(timeline: Timeline, rank: int | None) -> list[int]:
    return [int(one) for one in timeline.ranks] if rank is None else [rank]


def _save(path: Path, text: str) -> None:
    if path.suffix == ".gz":
        # No time of writing in the file: the same run gives the same bytes.
        files.write_bytes(path, gzip.compress(text.encode(), compresslevel=5, mtime=0))
    else:
        files.write_text(path, text)


def _header(result: Prediction, timeline: Timeline, rank: int | None) -> dict[str, Any]:
    gpu = {
        "name": str(result.scenario.get("gpu", "GPU")),
        "totalGlobalMem": int(result.memory_capacity or 0),
    }
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": one, **gpu} for one in _ranks(timeline, rank)],
        "distributedInfo": _distributed(result, timeline, rank),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceName": f"prestep.rank{rank}.json" if rank is not None else "prestep.json",
    }


def _distributed(
    result: Prediction, timeline: Timeline, rank: int | None
) -> dict[str, Any]:
    """The process groups, of one rank those that it is in."""
    summary = result.scenario
    groups = [
        _group(name, group_ranks(text), axis)
        for (text, axis), name in _groups(timeline).items()
        if rank is None or rank in group_ranks(text)
    ]
    info: dict[str, Any] = {"backend": "nccl"}
    if rank is not None:
        info["rank"] = rank
    info["world_size"] = int(summary.get("gpus", max(timeline.ranks) + 1))
    info["pg_count"] = len(groups)
    info["pg_config"] = groups
    if "nccl_version" in summary:
        info["nccl_version"] = str(summary["nccl_version"])
    return info


def _group(name: str, ranks: Collection[int], axis: str) -> dict[str, Any]:
    return {
        "pg_name": name,
        "pg_desc": f"mesh_{axis}",
        "pg_size": len(ranks),
        "ranks": list(ranks),
    }


def _groups(timeline: Timeline) -> dict[tuple[str, str], str]:
    """(ranks, axis) of every process group -> its name, numbered in sorted order."""
    rows = timeline.select(timeline.matches("kind", *COMMUNICATION))
    pairs = {(g, a) for g, a in zip(rows["group"], rows["axis"], strict=True) if g}
    return {
        pair: str(i)
        for i, pair in enumerate(sorted(pairs, key=lambda p: (p[1], group_ranks(p[0]))))
    }
