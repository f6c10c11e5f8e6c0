"""Nsight Systems exports (`nsys export --type sqlite`). Tables are made only where there is something to put in."""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.traces import files
from prestep.workloads.traces.collectives import KERNEL, KERNEL_OPS
from prestep.workloads.traces.files import number
from prestep.workloads.traces.readers.kineto import call_kind
from prestep.workloads.traces.schema import (
    Recording,
    Span,
    dropped_of,
    start_at_zero,
    table_of,
)
from prestep.workloads.traces.steps import NAMED

NS = 1e-9
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
ACTIVITIES = (
    *("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET"),
    *("RUNTIME", "SYNCHRONIZATION"),
)
WHOLE_GRAPHS = (
    "CUDA graph in one piece; nsys profile --cuda-graph-trace=node has its kernels"
)
PROCESS = 1 << 24  # globalTid and globalPid: the thread is in the lower 24 bits


def sniff(head: bytes) -> bool:
    """Whether a file is a SQLite database."""
    return head.startswith(b"SQLite format 3\x00")


def read(path: Path) -> Recording:
    """The recording of one process: that with most kernels, if there are several.

    Raises
    ------
    InputError
        For a database that is damaged or not of Nsight Systems.
    """
    with tempfile.TemporaryDirectory() as folder:
        plain = path
        if files.is_gzip(path):
            plain = Path(folder) / "export.sqlite"
            plain.write_bytes(files.content(path))
        try:
            with closing(
                sqlite3.connect(f"file:{plain}?mode=ro", uri=True)
            ) as database:
                return _read(path, database)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise InputError.of(
                str(path), "", f"a damaged database ({error})", "an export of nsys"
            ) from None


# Columns that are whole numbers, and between which; an owner has bits of the machine at its top.
NUMBERS = {
    "globalPid": (-1 << 63, 1 << 63),
    "globalTid": (-1 << 63, 1 << 63),
    "deviceId": (0, 1 << 20),
    "streamId": (0, 1 << 32),
    "correlationId": (0, 1 << 62),
    "bytes": (0, 1 << 62),
    "copyKind": (0, 1 << 31),
}
EARLIEST, LATEST = -1 << 60, 1 << 61  # ns: 73 years


@dataclass(frozen=True)
class _Export:
    """A database of nsys: its tables, its texts by id, and the process that is read."""

    database: sqlite3.Connection
    tables: frozenset[str]
    words: dict[Any, str]
    process: int | None = None

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Rows of an activity that ended."""
        table = f"CUPTI_ACTIVITY_KIND_{kind}"
        if table not in self.tables:
            return []
        query = f"select * from {table} where end is not null"
        return [row for row in map(dict, self.database.execute(query)) if _sound(row)]

    def value(self, table: str, column: str) -> Any:
        """A column of a table's first row; None if there is no such."""
        if table not in self.tables:
            return None
        row = self.database.execute(f"select * from {table}").fetchone()
        present = row is not None and column in row.keys()  # noqa: SIM118 (a Row is no dict)
        return row[column] if present else None

    def of_process(self, owner: int) -> bool:
        """Whether an owner (process, with higher bits of the machine) is the process that is read."""
        return self.process is None or owner % PROCESS == self.process % PROCESS


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _sound(row: dict[str, Any]) -> bool:
    """Whether numbers of a row are numbers: a column of SQLite takes any value."""
    times = (row.get("start"), row.get("end"))
    return all(_within(value, EARLIEST, LATEST) for value in times) and all(
        row.get(name) is None or _within(row[name], *bounds)
        for name, bounds in NUMBERS.items()
    )


def _within(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and low <= value < high


def _export(path: Path, database: sqlite3.Connection) -> _Export:
    """Tables and texts of a database.

    Raises
    ------
    InputError
        If it is not of Nsight Systems.
    """
    database.row_factory = sqlite3.Row
    database.text_factory = _text
    listed = database.execute("select name from sqlite_master where type = 'table'")
    tables = frozenset(row[0] for row in listed)
    if "StringIds" not in tables:
        raise InputError.of(
            str(path), "", "no table StringIds", "an export of nsys (--type sqlite)"
        )
    texts = database.execute("select id, value from StringIds")
    return _Export(database, tables, {row[0]: str(row[1]) for row in texts})


def _read(path: Path, database: sqlite3.Connection) -> Recording:
    export = _export(path, database)
    rows = {name: export.rows(name) for name in ACTIVITIES}
    processes = Counter(map(_owner, rows["KERNEL"] + rows["GRAPH_TRACE"]))
    if processes:
        export = replace(export, process=processes.most_common(1)[0][0])
    counts: Counter[tuple[str, str]] = Counter()
    spans = [span for name in rows for span in _spans(name, rows[name], export, counts)]
    spans += _steps(export)
    first = start_at_zero(spans)
    origin = export.value("TARGET_INFO_SESSION_START_TIME", "utcEpochNs") or 0
    return Recording(
        str(path),
        "nsight",
        rank=-1,
        world=0,
        origin=number(origin) + round(first / NS),
        device=str(export.value("TARGET_INFO_GPU", "name") or ""),
        nccl="",
        groups={},
        spans=table_of(spans, -1),
        dropped=dropped_of(counts, -1),
        repaired={WHOLE_GRAPHS: len(graphs)} if (graphs := rows["GRAPH_TRACE"]) else {},
    )


def _spans(
    table: str,
    rows: list[dict[str, Any]],
    export: _Export,
    counts: Counter[tuple[str, str]],
) -> Iterator[Span]:
    """Spans of a table's rows that are of the process."""
    for row in rows:
        owner = _owner(row)
        if not export.of_process(owner):
            counts[table.lower(), "of another process"] += 1
        elif table == "KERNEL":
            yield _kernel(row, export.words)
        elif table == "GRAPH_TRACE":
            yield _graph(row)
        elif table in ("MEMCPY", "MEMSET"):
            yield _copy(table, row)
        elif table == "RUNTIME":
            yield from _call(row, export.words, counts)
        else:
            counts["synchronization", "the call is there too"] += 1


def _owner(row: dict[str, Any]) -> int:
    return int(row.get("globalPid") or row.get("globalTid") or 0) // PROCESS


def _times(row: dict[str, Any]) -> tuple[float, float]:
    return row["start"] * NS, max(row["start"], row["end"]) * NS


def _stream(row: dict[str, Any]) -> int:
    return (int(row.get("deviceId") or 0) << 32) + int(row.get("streamId") or 0)


def _correlation(row: dict[str, Any]) -> int:
    return int(row.get("correlationId") or -1)


def _kernel(row: dict[str, Any], words: dict[Any, str]) -> Span:
    short = words.get(row.get("shortName"), "kernel")
    name = words.get(row.get("demangledName"), short)
    match = KERNEL.search(name)
    return Span(
        "kernel",
        name,
        _stream(row),
        *_times(row),
        collective=KERNEL_OPS[match.group(1)] if match else "",
        correlation=_correlation(row),
    )


def _graph(row: dict[str, Any]) -> Span:
    """A CUDA graph as one piece of work: nsys lists its kernels only with --cuda-graph-trace=node."""
    name = f"CUDA graph {row.get('graphId') or ''}".strip()
    times = _times(row)
    return Span("kernel", name, _stream(row), *times, correlation=_correlation(row))


def _copy(table: str, row: dict[str, Any]) -> Span:
    name = "Memset"
    if table == "MEMCPY":
        name = f"Memcpy {COPIES.get(row.get('copyKind', 0), '')}".strip()
    return Span(
        table.lower(),
        name,
        _stream(row),
        *_times(row),
        bytes=float(row.get("bytes") or 0),
        correlation=_correlation(row),
    )


def _call(
    row: dict[str, Any], words: dict[Any, str], counts: Counter[tuple[str, str]]
) -> Iterator[Span]:
    """The span of a CUDA call, if a replay has a use for it."""
    versioned = words.get(row.get("nameId"), "")
    name = re.sub(r"_v\d+$", "", versioned).removesuffix("_ptsz")
    kind = call_kind(name)
    if not kind:
        counts[f"call {name}", "no launch, wait or synchronisation"] += 1
        return
    thread = int(row.get("globalTid") or 0) % PROCESS
    yield Span(kind, name, thread, *_times(row), correlation=_correlation(row))


def _steps(export: _Export) -> Iterator[Span]:
    """NVTX ranges that are named like steps."""
    if "NVTX_EVENTS" not in export.tables:
        return
    query = "select * from NVTX_EVENTS where end is not null order by start"
    for row in map(dict, export.database.execute(query)):
        text = str(row.get("text") or export.words.get(row.get("textId"), ""))
        if not _sound(row) or not NAMED.match(text):
            continue
        owner = row.get("globalTid") or 0
        if export.of_process(owner // PROCESS):
            thread = owner % PROCESS
            yield Span("step", text, thread, row["start"] * NS, row["end"] * NS)
