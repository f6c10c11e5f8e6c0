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

from prestep.sim.errors import InputError
from prestep.workloads.operation import words
from prestep.workloads.traces import files, protobuf
from prestep.workloads.traces.nodes import DAMAGED, Node, sound, spans_of
from prestep.workloads.traces.schema import (
    Recording,
    dropped_of,
    start_at_zero,
    table_of,
)

COMP, SEND, RECV, COLL = 4, 5, 6, 7
# CollectiveCommType, in order.
TYPES = words(
    "all_reduce reduce all_gather gather scatter broadcast all_to_all reduce_scatter reduce_scatter "
    "all_reduce"
)
US = 1e-6
# What messages end in that are cut off, or have fields of other types.
UNUSUAL = (
    IndexError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    struct.error,
)
GROUPS = ".comm_group.json"  # ending of ASTRA-sim's file with the ranks of groups


def sniff(head: bytes) -> bool:
    """Whether a file begins with a length and a GlobalMetadata message."""
    try:
        length, at = protobuf.varint(head, 0)
        if not 0 < length < 1 << 20 or at + length > len(head):
            return False
        fields = dict(protobuf.fields(head[at : at + length]))
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
    except UNUSUAL:
        hint = "copy it again"
        damage = "a message that is cut off or damaged"
        raise InputError.of(
            str(path), "", damage, "a whole Chakra trace", hint
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
    listed, nodes = nodes, sound(nodes)
    if damaged := len(listed) - len(nodes):
        counts[DAMAGED] += damaged
    if not nodes:
        raise InputError.of(str(path), "", "no node", "a Chakra trace with nodes")
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
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InputError.of(
                    str(file), "", f"{error}", 'groups and their ranks, {"1": [0, 1]}'
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
    first = start_at_zero(spans)
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
    """A node of the file; None for one that stands for no work."""
    node = Node(0, "", True, 0.0)
    kind, attributes = COMP, dict[str, Any]()
    for number, value in protobuf.fields(message):
        if number == 1:
            node.id = value
        elif number == 2:
            node.name = value.decode("utf-8", "replace")
        elif number == 3:
            kind = value
        elif number in (4, 5):
            node.deps += [value] if isinstance(value, int) else protobuf.packed(value)
        elif number == 6 and value:
            node.start = value * US
        elif number == 7:
            node.duration = value * US
        elif number == 10:
            name, content = _attribute(value)
            attributes[name] = content
    if kind not in (COMP, SEND, RECV, COLL):
        return None
    return described(node, kind, attributes)


def described(node: Node, kind: int, attributes: dict[str, Any]) -> Node:
    """A node with what its type and attributes say."""
    on_host = kind == COMP and "stream" not in attributes
    node.host = bool(attributes.get("is_cpu_op", on_host))
    node.computes = kind == COMP
    node.thread = int(attributes.get("stream", attributes.get("tid", 0)) or 0)
    if kind != COMP and not node.host:
        _describe_communication(node, kind, attributes)
    return node


def _describe_communication(node: Node, kind: int, attributes: dict[str, Any]) -> None:
    """Size, group and operation of a collective or a transfer."""
    node.size = float(attributes.get("comm_size", 0))
    node.group = f"{attributes.get('pg_name', '')}:"
    if kind == SEND:
        node.collective = "p2p"
        node.peers = f"send>{int(attributes.get('comm_dst', -1))}:{int(node.size)}"
    elif kind == RECV:
        node.collective = "p2p"
        node.peers = f"recv<{int(attributes.get('comm_src', -1))}:{int(node.size)}"
    elif "comm_type" in attributes:
        type_ = int(attributes["comm_type"])
        if 0 <= type_ < len(TYPES):
            node.collective = TYPES[type_]


def _grouped(nodes: list[Node]) -> list[Node]:
    """Sends and receives with the same name, dependencies and stream are parts of one kernel."""
    kernels, kernel_of = list[Node](), dict[int, int]()
    transfers = dict[tuple[object, ...], Node]()
    for node in nodes:
        key = node.name, node.thread, tuple(node.deps)
        kernel = transfers.get(key) if node.peers else None
        if kernel is not None:
            kernel_of[node.id] = kernel.id
            _take_part(kernel, node)
            continue
        kernels.append(node)
        if node.peers:
            transfers[key] = node
    for node in kernels:
        node.deps = list(dict.fromkeys(kernel_of.get(d, d) for d in node.deps))
    return kernels


def _take_part(kernel: Node, part: Node) -> None:
    """Makes a transfer a part of a kernel, which lasts from the first start to the last end."""
    kernel.peers += f";{part.peers}"
    end = max(kernel.start + kernel.duration, part.start + part.duration)
    kernel.start = min(kernel.start, part.start)
    if kernel.start >= 0:
        kernel.duration = end - kernel.start
    else:
        kernel.duration = max(kernel.duration, part.duration)


def _attribute(message: bytes) -> tuple[str, Any]:
    name, content = "", None
    for number, value in protobuf.fields(message):
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
        length, at = protobuf.varint(data, at)
        if at + length > len(data):
            raise ValueError("cut off")
        yield data[at : at + length]
        at += length
