"""Tables of measured kernels, as `prestep.sim.costs.tables.read_rows` reads them."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from prestep.sim.costs.tables import Row

HEAD = (
    "kind",
    "layout",
    "dtype",
    "shape",
    "bytes",
    "seconds",
    "noise",
    "count",
    "source",
)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes the rows in their order."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows(map(_cells, rows))


def _cells(row: Row) -> list[object]:
    kernel = row.kernel
    shape = "x".join(map(str, kernel.shape))
    size = f"{kernel.bytes:.0f}" if kernel.bytes else ""
    what = [kernel.kind, kernel.layout, kernel.dtype, shape, size]
    return [*what, f"{row.duration:.4g}", row.noise, row.count, row.source]
