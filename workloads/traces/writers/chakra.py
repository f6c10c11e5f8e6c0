"""Writes Chakra execution traces: one file a rank, with the attributes that ASTRA-sim's feeder reads.

Nodes have whole microseconds; what rounding takes from one node is given to the next of its stream, so that sums stay
right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prestep.sim import files
from prestep.workloads.traces import protobuf
from prestep.workloads.traces.draft import Node
from prestep.workloads.traces.kernels import kernel_of
from prestep.workloads.traces.readers import chakra
from prestep.workloads.traces.replay import Job
from prestep.workloads.traces.steps import WHOLE
from prestep.workloads.traces.work import GPU, MARK, Meeting

VERSION = "0.0.4"
HOST = -1  # the "stream" of what runs on the host
BEGIN = "begin "  # of the name of a mark, before that of its step


def write(job: Job, path_of: Callable[[int], Path], groups: Path) -> list[Path]:
    """Writes a file a rank, and ASTRA-sim's file of the groups where not all communication is among all ranks.

    Parameters
    ----------
    job : Job
    path_of : callable
        The path of a rank's file.
    groups : Path
        The path of the file of the groups.

    Returns
    -------
    list of Path
        The files written.
    """
    draft = job.draft()
    shared = _Shared(draft.meetings, job.world)
    written = []
    for rank, nodes in draft.programs.items():
        path = path_of(rank)
        messages = _Rank(rank, nodes, shared).messages()
        files.write_bytes(path, b"".join(map(protobuf.message, messages)))
        written.append(path)
    if shared.groups:
        listed = {name: list(ranks) for ranks, name in shared.groups.items()}
        files.write_text(groups, json.dumps(listed, indent=2))
        written.append(groups)
    return written


class _Shared:
    """What the files of all ranks must agree on: numbers of groups, and tags of transfers.

    ASTRA-sim takes group 0 as all ranks, and finds others by number in its file of groups; PyTorch's names of groups
    may differ from rank to rank.
    """

    def __init__(self, meetings: Sequence[Meeting], world: int) -> None:
        everyone = tuple(range(world))
        groups = {tuple(sorted(m.ranks)) for m in meetings if m.op != "send"}
        parts = sorted(ranks for ranks in groups if ranks != everyone)
        self.groups = {ranks: str(i) for i, ranks in enumerate(parts, 1)}
        sends = [m for m in meetings if m.op == "send"]
        self.tags = {id(meeting): tag for tag, meeting in enumerate(sends)}

    def group(self, meeting: Meeting) -> str:
        """The number of a collective's group."""
        return self.groups.get(tuple(sorted(meeting.ranks)), "0")


@dataclass(frozen=True)
class _Entry:
    """A node of the file; seconds.

    `attributes` are messages of its own kind; `work` is (operations, bytes) of a computation, for a roofline.
    """

    name: str
    kind: int
    start: float
    duration: float
    deps: Sequence[int]
    stream: int = HOST
    attributes: Sequence[bytes] = ()
    work: tuple[int, int] = (0, 0)

    def message(self, number: int, whole: int) -> bytes:
        """The node with its number and its duration in whole microseconds."""
        start = 1 + max(0, round(self.start * 1e6))  # 0 would say that there is none
        fields = [
            protobuf.number(1, number),
            protobuf.text(2, self.name),
            protobuf.number(3, self.kind),
            *(protobuf.number(5, d) for d in dict.fromkeys(self.deps)),
            protobuf.number(6, start),
            protobuf.number(7, whole),
            *(protobuf.text(10, attribute) for attribute in self._attributes()),
        ]
        return b"".join(fields)

    def _attributes(self) -> list[bytes]:
        """All attributes of the node."""
        listed = [_attribute("is_cpu_op", 27, int(self.stream == HOST))]
        listed += self.attributes
        if self.stream != HOST:
            listed.append(_attribute("stream", 9, self.stream))
        if self.kind == chakra.COMP:
            operations, size = self.work
            listed.append(_attribute("num_ops", 9, operations))
            listed.append(_attribute("tensor_size", 13, size))
        return listed


class _Rank:
    """Messages of one rank."""

    def __init__(self, rank: int, nodes: Sequence[Node], shared: _Shared) -> None:
        self.rank, self.nodes, self.shared = rank, nodes, shared
        self.ids: dict[int, list[int]] = {}
        self.last: dict[int, list[int]] = {}
        self.owed: dict[int, float] = {}
        self.next = 1
        self.out: list[bytes] = []

    def messages(self) -> list[bytes]:
        """Metadata, then the nodes: host time before an operation, then the operation."""
        self.out.append(protobuf.text(1, VERSION))
        host: list[int] = []
        pause = 0.0
        for node in self.nodes:
            pause += node.host
            if node.kind == MARK:
                if _begins_step(node):
                    host, pause = [self._mark(node, pause, host)], 0.0
                continue
            waits = [i for d in node.deps for i in self.ids.get(id(d), [])]
            host = [self._host(node, pause, host, waits)]
            pause = 0.0
            if node.kind == GPU:
                before = [*host, *self.last.get(node.stream, []), *waits]
                self.ids[id(node)] = self.last[node.stream] = self._gpu(node, before)
        return self.out

    def _host(self, node: Node, pause: float, host: list[int], waits: list[int]) -> int:
        """Adds the host's time before an operation: until it launches it, or until what it waits for is done."""
        if node.kind == GPU:
            name = f"launch {node.op.name}"[:60]
            begun = max(0.0, node.op.issue - pause)
            return self._add(_Entry(name, chakra.COMP, begun, pause, host))
        begun = node.op.start - pause
        return self._add(
            _Entry(node.op.name, chakra.COMP, begun, pause, [*host, *waits])
        )

    def _mark(self, node: Node, pause: float, host: list[int]) -> int:
        """Adds where a step begins, as a call that takes no time: the step ends where the next one begins.

        The host's time before it belongs to the step before: the launch that follows begins within its own step.
        """
        name, start = node.op.name.removeprefix(BEGIN), node.op.start
        if pause:
            before = _Entry("host", chakra.COMP, start - pause, pause, host)
            host = [self._add(before)]
        return self._add(_Entry(name, chakra.COMP, start, 0.0, host))

    def _gpu(self, node: Node, before: list[int]) -> list[int]:
        """Adds a kernel, or the communications of one."""
        stream = node.stream & 0xFFFFFFFF
        if node.comms:
            return [
                self._communication(node, meeting, before, stream)
                for meeting in node.comms
            ]
        kernel = _Entry(
            node.op.name,
            chakra.COMP,
            node.op.start,
            node.duration,
            before,
            stream,
            work=_work_of(node),
        )
        return [self._add(kernel)]

    def _communication(
        self, node: Node, meeting: Meeting, before: list[int], stream: int
    ) -> int:
        """Adds a collective or a transfer."""
        if meeting.op == "send":
            sends = meeting.ranks[0] == self.rank
            kind = chakra.SEND if sends else chakra.RECV
        else:
            kind = chakra.COLL
        start = max(meeting.begin, node.op.start)
        attributes = self._attributes_of(meeting)
        return self._add(
            _Entry(
                node.op.name, kind, start, meeting.duration, before, stream, attributes
            )
        )

    def _attributes_of(self, meeting: Meeting) -> list[bytes]:
        """Size, peers and tag of a transfer; size, kind and group of a collective."""
        size = _attribute("comm_size", 9, int(meeting.size))
        if meeting.op == "send":
            return [
                size,
                _attribute("comm_src", 7, meeting.ranks[0]),
                _attribute("comm_dst", 7, meeting.ranks[1]),
                _attribute("comm_tag", 7, self.shared.tags[id(meeting)]),
            ]
        return [
            size,
            _attribute("comm_type", 9, chakra.TYPES.index(meeting.op)),
            _text("pg_name", self.shared.group(meeting)),
            _attribute("comm_priority", 7, 0),
        ]

    def _add(self, entry: _Entry) -> int:
        """Writes a node; its number."""
        exact = entry.duration * 1e6 + self.owed.get(entry.stream, 0.0)
        whole = max(0, round(exact))
        self.owed[entry.stream] = exact - whole
        self.out.append(entry.message(self.next, whole))
        self.next += 1
        return self.next - 1


def _begins_step(node: Node) -> bool:
    return node.op.name.startswith(BEGIN) and node.op.name != BEGIN + WHOLE


def _work_of(node: Node) -> tuple[int, int]:
    """Operations and bytes of a matrix product of known shape, for a roofline; (0, 0) of all else."""
    kernel = kernel_of(node.op)
    if not kernel.is_product or len(kernel.shape) != 3:
        return 0, 0
    m, n, k = kernel.shape
    return 2 * m * n * k, (m * n + m * k + k * n) * (4 if kernel.dtype == "fp32" else 2)


def _attribute(name: str, field: int, value: int) -> bytes:
    return protobuf.text(1, name) + protobuf.number(field, value)


def _text(name: str, value: str) -> bytes:
    return protobuf.text(1, name) + protobuf.text(29, value)
