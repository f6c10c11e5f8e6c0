"""Writes a recording as the PyTorch profiler does: Kineto's Chrome JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.workloads.traces.schema import Recording

# Category of Kineto for every kind of span; the others are host calls.
CATEGORIES = {
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "step": "user_annotation",
    "communication": "cpu_op",
    "gradient": "cpu_op",
}
NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


def write(recording: Recording, path: Path) -> None:
    """Writes a recording, compressed if the path ends with .gz."""
    rows = recording.spans.to_pylist()
    events = [_event_of(row) for row in rows if row["kind"] != "data"]
    root = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": recording.device}],
        "distributedInfo": _distributed(recording),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": recording.origin,
        "traceEvents": events,
    }
    save(root, path)


def save(root: dict[str, Any], path: Path) -> None:
    """Writes a trace as JSON, compressed if the path ends with .gz."""
    text = json.dumps(root).encode()
    compressed = path.suffix == ".gz"
    files.write_bytes(path, gzip.compress(text, 5, mtime=0) if compressed else text)


def _distributed(recording: Recording) -> dict[str, Any]:
    """What the file says of the job: ranks, groups and NCCL."""
    groups = [
        {"pg_name": name, "ranks": list(ranks)}
        for name, ranks in recording.groups.items()
    ]
    distributed: dict[str, Any] = {
        "backend": "nccl",
        "rank": recording.rank,
        "pg_config": groups,
    }
    if recording.world:
        distributed["world_size"] = recording.world
    if recording.nccl:
        distributed["nccl_version"] = recording.nccl
    return distributed


def _event_of(row: dict[str, Any]) -> dict[str, Any]:
    on_gpu = row["kind"] in ("kernel", "memcpy", "memset")
    return event(
        CATEGORIES.get(row["kind"], "cuda_runtime"),
        row["name"],
        row["stream"] >> 32 if on_gpu else 1,
        row["stream"] & 0xFFFFFFFF,
        (row["start"], row["end"]),
        _arguments(row, on_gpu),
    )


def event(
    category: str,
    name: str,
    pid: int,
    tid: int | str,
    times: tuple[float, float],
    args: dict[str, Any],
) -> dict[str, Any]:
    """Something that took from one time to another (s)."""
    start, end = times
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": round(start * 1e6, 3),
        "dur": round(max(0.0, end - start) * 1e6, 3),
        "args": args,
    }


def _arguments(row: dict[str, Any], on_gpu: bool) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if row["correlation"] >= 0:
        args["correlation"] = row["correlation"]
    if on_gpu:
        args |= {"device": row["stream"] >> 32, "stream": row["stream"] & 0xFFFFFFFF}
        if row["kind"] != "kernel":
            args["bytes"] = int(row["bytes"])
    if row["collective"] in NAMES and row["bytes"]:
        args |= _metadata(row)
    return args


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    """What Kineto says of a collective."""
    name, _, ranks = row["group"].partition(":")
    size = int(row["bytes"])
    metadata: dict[str, Any] = {
        "Collective name": NAMES[row["collective"]],
        "dtype": "Byte",
        "In msg nelems": size,
        "Out msg nelems": size,
        "Process Group Name": name,
    }
    if ranks and ranks[0] != "*":
        metadata["Process Group Ranks"] = f"[{ranks}]"
        metadata["Group size"] = ranks.count(",") + 1
    return metadata
