"""Recorded runs written in other formats: Chakra execution traces, Kineto's Chrome JSON, and the table itself.

Chakra: one file a rank, PREFIX.RANK.et, with the attributes that ASTRA-sim's feeder reads. Nodes have whole
microseconds; what rounding takes from one node is given to the next of its stream, so that sums stay right.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from sim import files
from sim.errors import InputError, Mistake
from workloads.traces.draft import Node
from workloads.traces.kernels import kernel_of
from workloads.traces.matching import Meeting
from workloads.traces.readers import chakra
from workloads.traces.replay import Job, assemble
from workloads.traces.schema import Recording
from workloads.traces.work import GPU, MARK

FORMATS = {
    "chakra": (".et",),
    "kineto": (".json", ".json.gz"),
    "table": (".parquet", ".arrow"),
}
VERSION = "0.0.4"
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


def format_for(output: Path, asked: str = "") -> str:
    """The format asked for, or that of the file's ending.

    Raises
    ------
    InputError
        If neither says one.
    """
    for name, endings in FORMATS.items():
        if asked == name or (not asked and str(output).endswith(endings)):
            return name
    endings = tuple(e for listed in FORMATS.values() for e in listed)
    raise InputError(
        Mistake(
            str(output),
            "",
            "an ending of no format",
            " or ".join(endings),
            "or say --to",
        )
    )


def convert(recordings: Sequence[Recording], output: Path, to: str = "") -> list[Path]:
    """Writes the recordings of a run; the files written.

    Raises
    ------
    InputError
        If the files cannot be written.
    """
    kind = format_for(output, to)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if kind == "chakra":
            return _chakra(assemble(recordings), output)
        if kind == "kineto":
            return [
                _kineto(recording, output, len(recordings) > 1)
                for recording in recordings
            ]
        table = pa.concat_tables(
            [r.spans for r in recordings], promote_options="default"
        ).unify_dictionaries()
        if output.suffix == ".parquet":
            pyarrow.parquet.write_table(table, output)
        else:
            with (
                pa.OSFile(str(output), "wb") as sink,
                pa.ipc.new_file(sink, table.schema) as writer,
            ):
                writer.write_table(table)
    except OSError as error:
        raise InputError(
            Mistake(str(output), "", str(error.strerror), "a path that can be written")
        ) from None
    return [output]


def _ending(output: Path) -> str:
    endings = sorted(
        (e for listed in FORMATS.values() for e in listed), key=len, reverse=True
    )
    return next((e for e in endings if output.name.endswith(e)), "")


def _stem(output: Path) -> str:
    return output.name.removesuffix(_ending(output))


def _of_rank(output: Path, rank: int) -> Path:
    return output.with_name(
        f"{_stem(output).removesuffix(f'.{rank}')}.{rank}{_ending(output) or '.et'}"
    )


def _chakra(job: Job, output: Path) -> list[Path]:
    """A file a rank, and, where not all communication is among all ranks, ASTRA-sim's file of the groups."""
    draft = job.draft()
    shared = _Shared(draft.meetings, job.world)
    written = []
    for rank, nodes in draft.programs.items():
        path = _of_rank(output, rank)
        files.write_bytes(
            path, b"".join(map(chakra.message, _Chakra(rank, nodes, shared).messages()))
        )
        written.append(path)
    if shared.groups:
        path = output.with_name(f"{_stem(output)}{chakra.GROUPS}")
        files.write_text(
            path,
            json.dumps(
                {name: list(ranks) for ranks, name in shared.groups.items()}, indent=2
            ),
        )
        written.append(path)
    return written


class _Shared:
    """What the files of all ranks must agree on: numbers of groups, and tags of transfers.

    ASTRA-sim takes group 0 as all ranks, and finds others by number in its file of groups; PyTorch's names of groups
    may differ from rank to rank.
    """

    def __init__(self, meetings: Sequence[Meeting], world: int) -> None:
        found = {tuple(sorted(m.ranks)) for m in meetings if m.op != "send"}
        parts = sorted(ranks for ranks in found if ranks != tuple(range(world)))
        self.groups = {ranks: str(i) for i, ranks in enumerate(parts, 1)}
        self.tags = {
            id(m): i for i, m in enumerate(m for m in meetings if m.op == "send")
        }

    def group(self, meeting: Meeting) -> str:
        return self.groups.get(tuple(sorted(meeting.ranks)), "0")


class _Chakra:
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
        self.out.append(chakra.text(1, VERSION))
        host: list[int] = []
        pause = 0.0
        for node in self.nodes:
            pause += node.host
            if node.kind == MARK:
                continue
            waits = [i for d in node.deps for i in self.ids.get(id(d), [])]
            if node.kind != GPU:
                host = [
                    self._add(
                        node.op.name,
                        chakra.COMP,
                        pause,
                        [*host, *waits],
                        -1,
                        True,
                        node.op.start - pause,
                    )
                ]
                pause = 0.0
                continue
            begun = max(0.0, node.op.issue - pause)
            host = [
                self._add(
                    f"launch {node.op.name}"[:60],
                    chakra.COMP,
                    pause,
                    host,
                    -1,
                    True,
                    begun,
                )
            ]
            pause = 0.0
            before = [*host, *self.last.get(node.stream, []), *waits]
            self.ids[id(node)] = self.last[node.stream] = self._work(node, before)
        return self.out

    def _work(self, node: Node, before: list[int]) -> list[int]:
        stream = node.stream & 0xFFFFFFFF
        if not node.comms:
            size = _work_of(node)
            return [
                self._add(
                    node.op.name,
                    chakra.COMP,
                    node.duration,
                    before,
                    stream,
                    False,
                    node.op.start,
                    (),
                    size,
                )
            ]
        made = []
        for meeting in node.comms:
            attrs = [_attribute("comm_size", 9, int(meeting.size))]
            if meeting.op == "send":
                kind = chakra.SEND if meeting.ranks[0] == self.rank else chakra.RECV
                attrs += [
                    _attribute("comm_src", 7, meeting.ranks[0]),
                    _attribute("comm_dst", 7, meeting.ranks[1]),
                ]
                attrs += [_attribute("comm_tag", 7, self.shared.tags[id(meeting)])]
            else:
                kind, group = chakra.COLL, self.shared.group(meeting)
                attrs += [
                    _attribute("comm_type", 9, chakra.TYPES.index(meeting.op)),
                    _text("pg_name", group),
                ]
                attrs += [_attribute("comm_priority", 7, 0)]
            start = max(meeting.begin, node.op.start)
            made.append(
                self._add(
                    node.op.name,
                    kind,
                    meeting.duration,
                    before,
                    stream,
                    False,
                    start,
                    attrs,
                )
            )
        return made

    def _add(
        self,
        name: str,
        kind: int,
        duration: float,
        deps: list[int],
        stream: int,
        host: bool,
        start: float,
        more: Sequence[bytes] = (),
        work: tuple[int, int] = (0, 0),
    ) -> int:
        exact = duration * 1e6 + self.owed.get(stream, 0.0)
        whole = max(0, round(exact))
        self.owed[stream] = exact - whole
        body = (
            chakra.number(1, self.next) + chakra.text(2, name) + chakra.number(3, kind)
        )
        body += b"".join(chakra.number(5, d) for d in dict.fromkeys(deps))
        # 0 would say that there is no start.
        body += chakra.number(6, 1 + max(0, round(start * 1e6))) + chakra.number(
            7, whole
        )
        attrs = [_attribute("is_cpu_op", 27, int(host)), *more]
        if not host:
            attrs.append(_attribute("stream", 9, stream))
        if kind == chakra.COMP:
            attrs += [
                _attribute("num_ops", 9, work[0]),
                _attribute("tensor_size", 13, work[1]),
            ]
        self.out.append(body + b"".join(chakra.text(10, attr) for attr in attrs))
        self.next += 1
        return self.next - 1


def _work_of(node: Node) -> tuple[int, int]:
    """Operations and bytes of a matrix product of known shape, for a roofline; (0, 0) of all else."""
    kernel = kernel_of(node.op)
    if kernel.kind not in ("gemm", "gemm_bias") or len(kernel.shape) != 3:
        return 0, 0
    m, n, k = kernel.shape
    return 2 * m * n * k, (m * n + m * k + k * n) * (4 if kernel.dtype == "fp32" else 2)


def _attribute(name: str, field: int, value: int) -> bytes:
    return chakra.text(1, name) + chakra.number(field, value)


def _text(name: str, value: str) -> bytes:
    return chakra.text(1, name) + chakra.text(29, value)


def _kineto(recording: Recording, output: Path, several: bool) -> Path:
    path = _of_rank(output, recording.rank) if several else output
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
    events = [
        _event(row) for row in recording.spans.to_pylist() if row["kind"] != "data"
    ]
    root = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": recording.device}],
        "distributedInfo": distributed,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": recording.origin,
        "traceEvents": events,
    }
    text = json.dumps(root).encode()
    files.write_bytes(
        path, gzip.compress(text, 5, mtime=0) if path.suffix == ".gz" else text
    )
    return path


def _event(row: dict[str, Any]) -> dict[str, Any]:
    on_gpu = row["kind"] in ("kernel", "memcpy", "memset")
    return {
        "ph": "X",
        "cat": CATEGORIES.get(row["kind"], "cuda_runtime"),
        "name": row["name"],
        "pid": row["stream"] >> 32 if on_gpu else 1,
        "tid": row["stream"] & 0xFFFFFFFF,
        "ts": round(row["start"] * 1e6, 3),
        "dur": round((row["end"] - row["start"]) * 1e6, 3),
        "args": _arguments(row, on_gpu),
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
