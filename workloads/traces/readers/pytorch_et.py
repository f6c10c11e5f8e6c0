"""PyTorch execution traces (ExecutionTraceObserver JSON) linked with Kineto ("ET+"): host nodes and their kernels.

One that is not linked has no times, and is refused with what to do.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.traces.files import integer, number, time
from prestep.workloads.traces.linked import nodes_of
from prestep.workloads.traces.nodes import DAMAGED, Node, sound
from prestep.workloads.traces.readers.chakra import recording
from prestep.workloads.traces.schema import Recording

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
    raw = nodes_of(path)
    timed = [node for node in raw if "ts" in node and "dur" in node]
    if not any(node.get("cat") for node in timed):
        hint = "link it with the Kineto trace of the same run (chakra_trace_link), or replay that trace itself"
        raise InputError.of(
            str(path),
            "nodes",
            "no times and no GPU work",
            "a linked execution trace",
            hint,
        )
    nodes = sound(map(_node, timed))
    counts: Counter[tuple[str, str]] = Counter(
        {("node", "no time"): len(raw) - len(timed), DAMAGED: len(timed) - len(nodes)}
    )
    counts["host node", "its time is in the launches that follow it"] = sum(
        node.host for node in nodes
    )
    counts = Counter({key: count for key, count in counts.items() if count})
    return recording(str(path), "pytorch_et", nodes, counts, Counter())


def _node(raw: dict[str, Any]) -> Node | None:
    """A node; None of one whose numbers are none."""
    host = "cat" not in raw
    args = raw.get("args")
    stream = args.get("stream") if isinstance(args, dict) and not host else None
    identity, start, duration = (
        integer(raw.get("id"), None),
        time(raw["ts"]),
        time(raw["dur"]),
    )
    if identity is None or start is None or duration is None:
        return None
    parent = integer(raw.get("parent"), None)
    return Node(
        identity,
        str(raw.get("name", "")),
        host,
        max(0.0, duration) * US,
        start * US,
        number(raw.get("tid") if stream is None else stream),
        [] if parent is None else [parent],
        shape=json.dumps(raw.get("input_shapes", [])),
        dtype=json.dumps(_types(raw.get("input_types"))),
    )


def _types(listed: Any) -> list[str]:
    """Types of elements: "float" of "Tensor(float)"."""
    types = map(str, listed if isinstance(listed, list) else [])
    return [re.sub(r"^Tensor\((.*)\)$", r"\1", name) for name in types]
