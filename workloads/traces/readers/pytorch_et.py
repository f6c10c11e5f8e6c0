"""PyTorch execution traces (ExecutionTraceObserver JSON) linked with Kineto ("ET+"): host nodes and their kernels.

One that is not linked has no times, and is refused with what to do.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from sim.errors import InputError, Mistake
from workloads.traces import files
from workloads.traces.nodes import Node
from workloads.traces.readers.chakra import recording
from workloads.traces.schema import Recording

US = 1e-6


def sniff(head: bytes) -> bool:
    """Whether a file begins like an execution trace: an object with a schema and nodes, and no trace events."""
    start = head.lstrip()[:4096]
    return (
        start[:1] == b"{"
        and b'"nodes"' in head
        and b'"traceEvents"' not in head
        and b'"schema"' in start
    )


def read(path: Path) -> Recording:
    """The recording of one rank.

    Raises
    ------
    InputError
        For JSON that ends early, and traces without times.
    """
    try:
        root = msgspec.json.decode(files.content(path))
    except msgspec.DecodeError:
        raise InputError(
            Mistake(str(path), "", "JSON that ends early", "a whole execution trace")
        ) from None
    raw = [node for node in root.get("nodes", []) if isinstance(node, dict)]
    timed = [node for node in raw if "ts" in node and "dur" in node]
    if not any(node.get("cat") for node in timed):
        hint = "link it with the Kineto trace of the same run (chakra_trace_link), or replay that trace itself"
        raise InputError(
            Mistake(
                str(path),
                "nodes",
                "no times and no GPU work",
                "a linked execution trace",
                hint,
            )
        )
    nodes = [_node(node) for node in timed]
    counts: Counter[tuple[str, str]] = Counter(
        {("node", "no time"): len(raw) - len(timed)}
    )
    counts["host node", "its time is in the launches that follow it"] = sum(
        node.host for node in nodes
    )
    counts = Counter({key: count for key, count in counts.items() if count})
    return recording(str(path), "pytorch_et", nodes, counts, Counter())


def _node(raw: dict[str, Any]) -> Node:
    host = "cat" not in raw
    args = raw.get("args") or {}
    thread = raw.get("tid", 0) if host else args.get("stream", raw.get("tid", 0))
    types = [
        re.sub(r"^Tensor\((.*)\)$", r"\1", str(t)) for t in raw.get("input_types", [])
    ]
    return Node(
        int(raw["id"]),
        str(raw["name"]),
        host,
        max(0.0, float(raw["dur"])) * US,
        float(raw["ts"]) * US,
        int(thread),
        [int(raw["parent"])] if raw.get("parent") is not None else [],
        shape=json.dumps(raw.get("input_shapes", [])),
        dtype=json.dumps(types),
    )
