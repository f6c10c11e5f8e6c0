"""Chakra execution traces (.et): length-prefixed protobuf messages, a GlobalMetadata and then a Node each.

Read and written by hand: the format needs four wire types and a dozen fields (schema/protobuf/et_def.proto of MLCommons
Chakra; the same fields since 0.0.4), so no protobuf library is needed.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sim.errors import InputError, Mistake
from workloads.traces import files
from workloads.traces.nodes import Node, spans_of
from workloads.traces.schema import Recording, dropped_of, table_of

COMP, SEND, RECV, COLL = 4, 5, 6, 7
# CollectiveCommType, in order.
TYPES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "all_reduce",
)
US = 1e-6
GROUPS = ".comm_group.json"  # ending of ASTRA-sim's file with the ranks of groups


def sniff(head: bytes) -> bool:
    """Whether a file begins with a length and a GlobalMetadata message."""
    try:
        length, at = _varint(head, 0)
        if not 0 < length < 1 << 20 or at + length > len(head):
            return False
        fields = dict(_fields(head[at : at + length]))
    except (IndexError, ValueError, struct.error):
        return False
    return (
        bool(fields)
        and set(fields) <= {1, 2}
        and all(isinstance(value, bytes) for value in fields.values())
    )


def read(path: Path) -> Recording:
    """The recording of one rank.

    Raises
    ------
    InputError
        For a file that ends in the middle of a message, or has no node.
    """
    nodes, counts = list[Node](), Counter[tuple[str, str]]()
    try:
        messages = list(_messages(files.content(path)))
        for message in messages[1:]:
            node = _node(message)
            if node is None:
                counts["metadata node", "no work"] += 1
            else:
                nodes.append(node)
    except (IndexError, ValueError, struct.error):
        hint = "copy it again"
        raise InputError(
            Mistake(
                str(path), "", "a message that is cut off", "a whole Chakra trace", hint
            )
        ) from None
    return recording_of(path, "chakra", nodes, counts)


def recording_of(
    path: Path, format: str, nodes: list[Node], counts: Counter[tuple[str, str]]
) -> Recording:
    """A recording of the nodes of a Chakra trace.

    Raises
    ------
    InputError
        If there are none.
    """
    if not nodes:
        raise InputError(Mistake(str(path), "", "no node", "a Chakra trace with nodes"))
    nodes, repaired = _grouped(nodes), Counter[str]()
    ranks = _ranks_beside(path)
    for node in nodes:
        node.group += ranks.get(node.group.rstrip(":"), "") if node.group else ""
    if negative := [node for node in nodes if node.duration < 0]:
        repaired["negative duration taken as 0"] += len(negative)
        for node in negative:
            node.duration = 0.0
    counts["host node", "its time is in the launches that follow it"] += sum(
        node.host for node in nodes
    )
    return recording(str(path), format, nodes, counts, repaired)


def _ranks_beside(path: Path) -> dict[str, str]:
    """Ranks of the groups in ASTRA-sim's file of groups ("PREFIX.comm_group.json") beside the files of the ranks.

    Raises
    ------
    InputError
        If it is no map of groups to lists of ranks.
    """
    for file in sorted(path.parent.glob(f"*{GROUPS}")):
        if path.name.startswith(file.name.removesuffix(GROUPS)):
            try:
                groups = msgspec.json.decode(
                    file.read_bytes(), type=dict[str, list[int]]
                )
            except msgspec.DecodeError as error:
                raise InputError(
                    Mistake(
                        str(file),
                        "",
                        f"{error}",
                        'groups and their ranks, {"1": [0, 1]}',
                    )
                ) from None
            return {name: ",".join(map(str, listed)) for name, listed in groups.items()}
    return {}


def recording(
    path: str,
    format: str,
    nodes: Sequence[Node],
    counts: Counter[tuple[str, str]],
    repaired: Counter[str],
) -> Recording:
    """A recording of the nodes of one rank; the rank is that of the file's name."""
    spans = spans_of(nodes, repaired)
    first = min((span.start for span in spans), default=0.0)
    for span in spans:
        span.start, span.end = span.start - first, span.end - first
    return Recording(
        path,
        format,
        -1,
        0,
        round(first * 1e9),
        "",
        "",
        {},
        table_of(spans, -1),
        dropped_of(counts, -1),
        dict(repaired),
    )


def _node(message: bytes) -> Node | None:
    found = Node(0, "", True, 0.0)
    kind, seen = COMP, dict[str, Any]()
    for number, value in _fields(message):
        if number == 1:
            found.id = value
        elif number == 2:
            found.name = value.decode("utf-8", "replace")
        elif number == 3:
            kind = value
        elif number in (4, 5):
            found.deps += [value] if isinstance(value, int) else _packed(value)
        elif number == 6 and value:
            found.start = value * US
        elif number == 7:
            found.duration = value * US
        elif number == 10:
            name, content = _attribute(value)
            seen[name] = content
    return described(found, kind, seen) if kind in (COMP, SEND, RECV, COLL) else None


def described(found: Node, kind: int, seen: dict[str, Any]) -> Node:
    """A node with what its type and attributes say."""
    found.host = bool(seen.get("is_cpu_op", kind == COMP and "stream" not in seen))
    found.computes = kind == COMP
    found.thread = int(seen.get("stream", seen.get("tid", 0)) or 0)
    if kind != COMP and not found.host:
        found.size, found.group = (
            float(seen.get("comm_size", 0)),
            f"{seen.get('pg_name', '')}:",
        )
        if (
            kind == COLL
            and "comm_type" in seen
            and 0 <= int(seen["comm_type"]) < len(TYPES)
        ):
            found.collective = TYPES[int(seen["comm_type"])]
        elif kind in (SEND, RECV):
            sign, peer = (
                ("send>", seen.get("comm_dst", -1))
                if kind == SEND
                else ("recv<", seen.get("comm_src", -1))
            )
            found.collective, found.peers = "p2p", f"{sign}{peer}:{int(found.size)}"
    return found


def _grouped(nodes: list[Node]) -> list[Node]:
    """Sends and receives with the same name, dependencies and stream are parts of one kernel."""
    result, part_of, whole = (
        list[Node](),
        dict[int, int](),
        dict[tuple[object, ...], Node](),
    )
    for node in nodes:
        key = node.name, node.thread, tuple(node.deps)
        first = whole.get(key) if node.peers else None
        if first is None:
            result.append(node)
            if node.peers:
                whole[key] = node
            continue
        part_of[node.id] = first.id
        first.peers += f";{node.peers}"
        end = max(first.start + first.duration, node.start + node.duration)
        first.start = min(first.start, node.start)
        first.duration = (
            end - first.start
            if first.start >= 0
            else max(first.duration, node.duration)
        )
    for node in result:
        node.deps = list(dict.fromkeys(part_of.get(d, d) for d in node.deps))
    return result


def _attribute(message: bytes) -> tuple[str, Any]:
    name, content = "", None
    for number, value in _fields(message):
        if number == 1:
            name = value.decode("utf-8", "replace")
        elif number in (5, 7, 9, 11, 13, 19, 21, 23, 25):
            content = (
                value - (1 << 64) if number in (7, 9) and value >= 1 << 63 else value
            )
        elif number in (15, 17):
            content = (value >> 1) ^ -(value & 1)
        elif number == 27:
            content = bool(value)
        elif number == 29:
            content = value.decode("utf-8", "replace")
        elif number == 3 and isinstance(value, int):
            content = struct.unpack("<d", struct.pack("<Q", value))[0]
    return name, content


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        if at + length > len(data):
            raise ValueError("cut off")
        yield data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number that is too long")


def _packed(data: bytes) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        elif wire == 2:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("cut off")
            yield key >> 3, message[at : at + length]
            at += length
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            yield key >> 3, int.from_bytes(message[at : at + size], "little")
            at += size
        else:
            raise ValueError("no such wire type")


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return _encoded(field << 3) + _encoded(value & (1 << 64) - 1)


def text(field: int, value: bytes | str) -> bytes:
    """A field of bytes, a text or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return _encoded(field << 3 | 2) + _encoded(len(raw)) + raw


def message(body: bytes) -> bytes:
    """A message with its length before it."""
    return _encoded(len(body)) + body


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
