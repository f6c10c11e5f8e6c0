"""A replay as a Chrome trace: measured and simulated tracks side by side, or the simulated run as Kineto's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from sim import files
from sim.errors import InputError, Mistake
from sim.replay.outcome import Outcome
from workloads.traces.draft import Node
from workloads.traces.work import GPU, MARK
from workloads.traces.writers.kineto import NAMES

LAUNCH, CALL = (
    "cudaLaunchKernel",
    4e-6,
)  # s drawn for a launch call, about what it takes in measured traces
OWN_STREAM = 1000  # drawn for communication that no recording had


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
        raise InputError(
            Mistake(str(path), "", str(error.strerror), "a path that can be written")
        ) from None


def _save(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content).encode()
    files.write_bytes(
        path, gzip.compress(text, 5, mtime=0) if path.suffix == ".gz" else text
    )


def _side_by_side(outcome: Outcome) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    for index, nodes in enumerate(outcome.replay.programs):
        rank, recorded = (
            outcome.replay.graph.programs[index].rank,
            index < len(outcome.replay.job.works),
        )
        start, end = outcome.run.start[index][0], outcome.run.end[index][0]
        for side, name in enumerate(("measured", "simulated")):
            pid = 2 * rank + side
            label = {"name": f"rank {rank} {name}"}
            events.append(
                {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": label}
            )
            events.append(
                {
                    "ph": "M",
                    "name": "process_sort_index",
                    "pid": pid,
                    "args": {"sort_index": pid},
                }
            )
            for i, node in enumerate(nodes):
                times = (
                    (node.op.start, node.op.finish)
                    if side == 0
                    else (float(start[i]), float(end[i]))
                )
                if node.kind == MARK or (side == 0 and not recorded):
                    continue
                events.append(_event(node, pid, *times))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _kineto(outcome: Outcome, index: int) -> dict[str, Any]:
    """The simulated run of one rank as the profiler would have written it; HolisticTraceAnalysis reads it."""
    job, program, nodes = (
        outcome.replay.job,
        outcome.replay.graph.programs[index],
        outcome.replay.programs[index],
    )
    launch, start, end = (
        times[index][0]
        for times in (outcome.run.launch, outcome.run.start, outcome.run.end)
    )
    begun, events = dict[str, float](), list[dict[str, Any]]()
    for i, node in enumerate(nodes):
        if node.kind == MARK:
            what, _, name = node.op.name.partition(" ")
            begun.setdefault(name, float(start[i]))
            if what == "end":
                events.append(
                    _call("user_annotation", name, begun[name], float(end[i]))
                )
        elif node.kind == GPU:
            events.append(
                _call(
                    "cuda_runtime",
                    LAUNCH,
                    launch[i] - CALL,
                    launch[i],
                    correlation=i + 1,
                )
            )
            stream = node.stream & 0xFFFFFFFF if node.stream >= 0 else OWN_STREAM
            made = _event(node, 0, float(start[i]), float(end[i]))
            made["args"] |= {
                "device": 0,
                "stream": stream,
                "correlation": i + 1,
            } | _metadata(node)
            events.append(made | {"tid": stream})
        else:
            events.append(
                _call("cuda_runtime", node.op.name, float(launch[i]), float(end[i]))
            )
    first = min(event["ts"] for event in events)
    for event in events:
        event["ts"] = round(event["ts"] - first, 3)
    world = outcome.replay.draft.world
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": job.device}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": program.rank,
            "world_size": world,
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceEvents": events,
    }


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
