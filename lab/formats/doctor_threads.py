"""Public threads whose cause is known (lab/cases/doctor/threads.toml) as logs for the doctor."""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prestep.sim.collectives.plan import nccl_of
from prestep.sim.collectives.settings import Nccl
from prestep.sim.exchanges.table import bus_factor
from prestep.sim.units import parse_bandwidth, parse_bytes
from prestep.topologies import load_cluster
from prestep.validation.doctor.diagnosis import Sign
from prestep.validation.doctor.sweep import Situation, series_of
from prestep.validation.formats.collective_rows import Row, nccl_op

#: Threads that tune nothing: those whose ids have the smallest checksums (CRC-32), chosen before anything was tuned.
APART = 10
#: The oldest NCCL whose tables prestep has: an older one is predicted as this.
OLDEST = (2, 19)


@dataclass(frozen=True)
class Thread:
    """One thread: its log, and the causes that say what it ended with."""

    id: str
    causes: tuple[str, ...]
    cluster: str
    settings: Nccl
    rows: tuple[Row, ...]
    good: tuple[Row, ...]
    lines: tuple[Sign, ...]
    apart: bool
    folder: Path = field(repr=False)

    def situation(self, good: bool = False) -> Situation:
        """What was measured with the cause, or (`good`) without it."""
        rows = self.good if good else self.rows
        hosts = max([row.hosts or 1 for row in rows], default=1)
        name = self.cluster
        where = self.folder / name if name.endswith(".toml") else name
        fabric = load_cluster(where, hosts if hosts > 1 else None)
        return Situation(fabric, self.settings, series_of(rows))


def read(path: Path) -> tuple[Thread, ...]:
    """All threads of a file, in its order."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["thread"]
    ids = sorted((table["id"] for table in tables), key=_checksum)
    apart = set(ids[:APART])
    return tuple(_thread(table, path.parent, apart) for table in tables)


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode())


def _thread(table: Mapping[str, Any], folder: Path, apart: set[str]) -> Thread:
    version = table.get("version", Nccl.version)
    release = tuple(map(int, version.split(".")[:2]))
    settings = nccl_of({"version": version, **table.get("set", {})})
    if release < OLDEST:
        settings = replace(settings, version="2.19.3")
    lines = (Sign(table["url"], line) for line in table.get("lines", []))
    return Thread(
        table["id"],
        tuple(table["causes"]),
        table["cluster"],
        settings,
        tuple(_rows(table["rows"], table["url"])),
        tuple(_rows(table.get("good", []), table["url"])),
        tuple(lines),
        table["id"] in apart,
        folder,
    )


def _rows(cells: Sequence[Sequence[Any]], url: str) -> Iterator[Row]:
    """Rows of (operation, hosts, GPUs of a host, size, bus bandwidth[, the hosts' names])."""
    for op, hosts, per_host, size, busbw, *names in cells:
        ranks, amount = hosts * per_host, int(parse_bytes(size))
        time = amount * bus_factor(nccl_op(op), ranks) / parse_bandwidth(busbw)
        row = Row("nccl-tests", op, ranks, amount, time, time, where=url)
        several = hosts if hosts > 1 else None
        yield replace(row, hosts=several, per_host=per_host, machine="".join(names))
