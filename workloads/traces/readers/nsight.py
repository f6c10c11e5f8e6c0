"""Nsight Systems exports (`nsys export --type sqlite`). Tables are made only where there is something to put in."""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sim.errors import InputError, Mistake
from workloads.traces import files
from workloads.traces.collectives import KERNEL, KERNEL_OPS
from workloads.traces.readers.kineto import call_kind
from workloads.traces.schema import Recording, Span, dropped_of, table_of
from workloads.traces.steps import NAMED

NS = 1e-9
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
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
        except sqlite3.DatabaseError as error:
            raise InputError(
                Mistake(
                    str(path), "", f"a damaged database ({error})", "an export of nsys"
                )
            ) from None


def _read(path: Path, database: sqlite3.Connection) -> Recording:
    database.row_factory = sqlite3.Row
    tables = {
        row[0]
        for row in database.execute(
            "select name from sqlite_master where type = 'table'"
        )
    }
    if "StringIds" not in tables:
        raise InputError(
            Mistake(
                str(path), "", "no table StringIds", "an export of nsys (--type sqlite)"
            )
        )
    words: dict[Any, str] = {
        row[0]: row[1] for row in database.execute("select id, value from StringIds")
    }
    rows = {
        name: list(_rows(database, tables, name))
        for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")
    }
    processes = Counter(row.get("globalPid", 0) // PROCESS for row in rows["KERNEL"])
    process = processes.most_common(1)[0][0] if processes else None
    counts: Counter[tuple[str, str]] = Counter()
    spans = [
        span
        for name in rows
        for span in _spans(name, rows[name], words, process, counts)
    ]
    spans += _steps(database, tables, words, process)
    first = min((span.start for span in spans), default=0.0)
    for span in spans:
        span.start, span.end = span.start - first, span.end - first
    origin = _one(database, tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs") or 0
    device = str(_one(database, tables, "TARGET_INFO_GPU", "name") or "")
    return Recording(
        str(path),
        "nsight",
        -1,
        0,
        int(origin) + round(first / NS),
        device,
        "",
        {},
        table_of(spans, -1),
        dropped_of(counts, -1),
    )


def _rows(
    database: sqlite3.Connection, tables: set[str], name: str
) -> Iterator[dict[str, Any]]:
    table = f"CUPTI_ACTIVITY_KIND_{name}"
    if table in tables:
        yield from (
            dict(row)
            for row in database.execute(f"select * from {table} where end is not null")
        )


def _one(
    database: sqlite3.Connection, tables: set[str], table: str, column: str
) -> Any:
    row = (
        database.execute(f"select * from {table}").fetchone()
        if table in tables
        else None
    )
    return row[column] if row is not None and column in row.keys() else None  # noqa: SIM118 (a Row is no dict)


def _spans(
    table: str,
    rows: list[dict[str, Any]],
    words: dict[Any, str],
    process: int | None,
    counts: Counter[tuple[str, str]],
) -> Iterator[Span]:
    """Spans of a table's rows that are of the process."""
    for row in rows:
        owner = row.get("globalPid", row.get("globalTid", 0)) // PROCESS
        if process is not None and owner % PROCESS != process % PROCESS:
            counts[table.lower(), "of another process"] += 1
        elif table == "KERNEL":
            yield _kernel(row, words)
        elif table in ("MEMCPY", "MEMSET"):
            yield _copy(table, row)
        elif table == "RUNTIME":
            yield from _call(row, words, counts)
        else:
            counts["synchronization", "the call is there too"] += 1


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


def _steps(
    database: sqlite3.Connection,
    tables: set[str],
    words: dict[Any, str],
    process: int | None,
) -> Iterator[Span]:
    """NVTX ranges that are named like steps."""
    if "NVTX_EVENTS" not in tables:
        return
    for row in database.execute(
        "select * from NVTX_EVENTS where end is not null order by start"
    ):
        has_id = "textId" in row.keys()  # noqa: SIM118 (a Row is no dict)
        text = row["text"] or words.get(row["textId"] if has_id else None, "")
        if (
            text
            and NAMED.match(text)
            and (
                process is None
                or row["globalTid"] // PROCESS % PROCESS == process % PROCESS
            )
        ):
            yield Span(
                "step",
                text,
                row["globalTid"] % PROCESS,
                row["start"] * NS,
                row["end"] * NS,
            )
