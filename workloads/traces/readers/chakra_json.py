"""Chakra execution traces as JSON: the feeder's ``workload_graph``, and what MLCommons' `chakra_jsonizer` prints.

The jsonizer writes one JSON object per protobuf message, metadata first, with names in camel case and long numbers as
text. The feeder's form is one object with a list of flat nodes ("id" or "Id", "runtime" in microseconds).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.traces import files
from prestep.workloads.traces.nodes import DAMAGED, Node
from prestep.workloads.traces.readers import chakra
from prestep.workloads.traces.schema import Recording

TYPES = {
    "MEM_LOAD_NODE": 2,
    "MEM_STORE_NODE": 3,
    "COMP_NODE": chakra.COMP,
    "COMM_SEND_NODE": chakra.SEND,
    "COMM_RECV_NODE": chakra.RECV,
    "COMM_COLL_NODE": chakra.COLL,
}
# What a node of unusual types ends in.
UNUSUAL = (TypeError, ValueError, AttributeError, KeyError, OverflowError)
_KEYS = re.compile(
    rb'"(durationMicros|duration_micros|dataDeps|data_deps|ctrlDeps|ctrl_deps|globalMetadata)"\s*:'
)


def sniff(head: bytes) -> bool:
    """Whether a file begins like either form, and like no other JSON trace."""
    if (
        head.lstrip()[:1] != b"{"
        or b'"traceEvents"' in head
        or (b'"schema"' in head[:4096] and b'"nodes"' in head)
    ):
        return False
    return b'"workload_graph"' in head or (
        _KEYS.search(head) is not None and b'"type"' in head
    )


def read(path: Path) -> Recording:
    """The recording of one rank.

    Raises
    ------
    InputError
        For JSON that ends early, and traces without nodes.
    """
    nodes, counts = list[Node](), Counter[tuple[str, str]]()
    for raw in _objects(path):
        try:
            node = _node(raw)
        except UNUSUAL:
            counts[DAMAGED] += 1
            continue
        if node is None:
            counts["metadata node", "no work"] += 1
        else:
            nodes.append(node)
    return chakra.recording_of(path, "chakra_json", nodes, counts)


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    text, decoder, at = (
        files.content(path).decode("utf-8", "replace"),
        json.JSONDecoder(),
        0,
    )
    blank = re.compile(r"[\s,]*")
    while (at := blank.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise InputError.of(
                str(path), "", "JSON that ends early", "a whole Chakra trace"
            ) from None
        listed = found.get("workload_graph", [found]) if isinstance(found, dict) else []
        if not isinstance(listed, list):
            kind = type(listed).__name__
            wanted = "a list of nodes"
            raise InputError.of(str(path), "workload_graph", kind, wanted)
        yield from (entry for entry in listed if isinstance(entry, dict))


def _node(raw: dict[str, Any]) -> Node | None:
    """A node of either form; None for metadata. Keys are compared without their case and underscores."""
    entry = {key.lower().replace("_", ""): value for key, value in raw.items()}
    kind = _kind(entry)
    if kind not in (chakra.COMP, chakra.SEND, chakra.RECV, chakra.COLL):
        return None
    attributes = _attributes(raw, entry)
    node = Node(int(entry["id"]), str(entry.get("name", "")), True, 0.0)
    duration = entry.get("runtime", entry.get("durationmicros", 0))
    node.duration = float(duration or 0) * chakra.US
    if start := float(entry.get("starttimemicros", 0) or 0):
        node.start = start * chakra.US
    node.deps = [
        int(d) for key in ("datadeps", "ctrldeps") for d in entry.get(key) or []
    ]
    return chakra.described(node, kind, attributes)


def _kind(entry: dict[str, Any]) -> int:
    """The type of a node: a name, or a number that may be text; -1 if it has none."""
    kind = entry.get("nodetype", entry.get("type"))
    if isinstance(kind, str) and not kind.isdecimal():
        return TYPES.get(kind, -1)
    return -1 if kind is None else int(kind)


def _attributes(raw: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a node: the feeder writes them beside its fields, the jsonizer in a list."""
    attributes = {
        name: value for name, value in raw.items() if not isinstance(value, dict | list)
    }
    for attribute in entry.get("attr") or []:
        values = [
            value
            for key, value in attribute.items()
            if key not in ("name", "docString", "doc_string")
        ]
        attributes[str(attribute.get("name"))] = values[0] if values else None
    return {name: _number(value) for name, value in attributes.items()}


def _number(value: Any) -> Any:
    """Numbers that JSON carries as text."""
    return (
        int(value)
        if isinstance(value, str) and re.fullmatch(r"-?\d+", value)
        else value
    )
