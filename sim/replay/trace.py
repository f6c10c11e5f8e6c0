"""A replay as a Chrome trace: measured and simulated tracks side by side, or the simulated run as Kineto's."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.errors import InputError
from prestep.sim.replay.outcome import Outcome
from prestep.workloads.traces.draft import Node
from prestep.workloads.traces.work import GPU, MARK
from prestep.workloads.traces.writers.kineto import NAMES

LAUNCH = "cudaLaunchKernel"
LAUNCH_CALL = 4e-6  # s drawn for a launch call, about what it takes in measured traces
OWN_STREAM = 1000  # drawn for communication that no recording had
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
            for index in range(len(outcome.replay.programs)):
                rank = outcome.replay.graph.programs[index].rank
                _save(path / f"rank{rank}.json.gz", _kineto(outcome, index))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _save(path, _side_by_side(outcome))
    except OSError as error:
        raise InputError.of(
            str(path), "", str(error.strerror), "a path that can be written"
        ) from None


def _save(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content).encode()
    packed = path.suffix == ".gz"
    files.write_bytes(path, gzip.compress(text, 5, mtime=0) if packed else text)


def _side_by_side(outcome: Outcome) -> dict[str, Any]:
    recorded = len(outcome.replay.job.works)
    events: list[Event] = []
    for index, program in enumerate(outcome.replay.graph.programs):
        pid = 2 * program.rank
        events += _labels(pid, f"rank {program.rank} measured")
        if index < recorded:
            events += _measured(outcome, index, pid)
        events += _labels(pid + 1, f"rank {program.rank} simulated")
        events += _simulated(outcome, index, pid + 1)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _labels(pid: int, name: str) -> Iterator[Event]:
    """The name of a track, and its place among the others."""
    label, place = {"name": name}, {"sort_index": pid}
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": label}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": place}


def _measured(outcome: Outcome, index: int, pid: int) -> Iterator[Event]:
    for node in outcome.replay.programs[index]:
        if node.kind != MARK:
            yield _event(node, pid, node.op.start, node.op.finish)


def _simulated(outcome: Outcome, index: int, pid: int) -> Iterator[Event]:
    start, end = outcome.run.start[index][0], outcome.run.end[index][0]
    for i, node in enumerate(outcome.replay.programs[index]):
        if node.kind != MARK:
            yield _event(node, pid, float(start[i]), float(end[i]))


def _kineto(outcome: Outcome, index: int) -> dict[str, Any]:
    """The simulated run of one rank as the profiler would have written it; HolisticTraceAnalysis reads it."""
    replay = outcome.replay
    distributed = {
        "backend": "nccl",
        "rank": replay.graph.programs[index].rank,
        "world_size": replay.draft.world,
    }
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": replay.job.device}],
        "distributedInfo": distributed,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceEvents": _from_zero(list(_kineto_events(outcome, index))),
    }


def _from_zero(events: list[Event]) -> list[Event]:
    """The events with their times counted from the first (us)."""
    first = min(event["ts"] for event in events)
    return [event | {"ts": round(event["ts"] - first, 3)} for event in events]


def _kineto_events(outcome: Outcome, index: int) -> Iterator[Event]:
    run = outcome.run
    launch, start, end = (times[index][0] for times in (run.launch, run.start, run.end))
    begun: dict[str, float] = {}
    for i, node in enumerate(outcome.replay.programs[index]):
        if node.kind == MARK:
            mark, _, name = node.op.name.partition(" ")
            begin = begun.setdefault(name, float(start[i]))
            if mark == "end":
                yield _call("user_annotation", name, begin, float(end[i]))
        elif node.kind == GPU:
            yield _launch(launch[i], i + 1)
            yield _kernel(node, i + 1, float(start[i]), float(end[i]))
        else:
            yield _call("cuda_runtime", node.op.name, float(launch[i]), float(end[i]))


def _launch(time: float, correlation: int) -> Event:
    """The call that launches GPU work until a moment."""
    begin = time - LAUNCH_CALL
    return _call("cuda_runtime", LAUNCH, begin, time, correlation=correlation)


def _kernel(node: Node, correlation: int, start: float, end: float) -> Event:
    """GPU work of which the launch has the same correlation."""
    stream = node.stream & 0xFFFFFFFF if node.stream >= 0 else OWN_STREAM
    event = _event(node, 0, start, end)
    where = {"device": 0, "stream": stream, "correlation": correlation}
    event["args"] |= where | _metadata(node)
    return event | {"tid": stream}


def _call(
    category: str, name: str, start: float, end: float, **args: Any
) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round(max(0.0, end - start) * 1e6, 3)}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": 1,
        **times,
        "args": args,
    }


def _metadata(node: Node) -> dict[str, Any]:
    """What Kineto says of a collective on its kernel."""
    if not node.comms or node.comms[0].op not in NAMES:
        return {}
    meeting = node.comms[0]
    ranks = f"[{', '.join(map(str, meeting.ranks))}]"
    return {
        "Collective name": NAMES[meeting.op],
        "dtype": "Byte",
        "In msg nelems": int(meeting.size),
        "Out msg nelems": int(meeting.size),
        "Group size": len(meeting.ranks),
        "Process Group Ranks": ranks,
        "Process Group Name": node.op.group.partition(":")[0] or "0",
    }


def _event(node: Node, pid: int, start: float, end: float) -> dict[str, Any]:
    gpu = node.kind == GPU
    args: dict[str, Any] = {"family": node.family} if gpu else {}
    if node.op.collective:
        args |= {
            "collective": node.op.collective,
            "bytes": node.op.bytes,
            "group": node.op.group,
        }
    return {
        "ph": "X",
        "cat": "kernel" if gpu else "cuda_runtime",
        "name": node.op.name,
        "pid": pid,
        "tid": f"stream {node.stream & 0xFFFFFFFF}" if gpu else "host",
        "ts": round(start * 1e6, 3),
        "dur": round(max(0.0, end - start) * 1e6, 3),
        "args": args,
    }
