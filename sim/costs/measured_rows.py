"""The table of kernels that one machine measured, as a Parquet file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prestep.sim import files
from prestep.sim.costs.tables import Row, row_of
from prestep.sim.errors import InputError

COLUMNS = (
    *("kind", "layout", "dtype", "shape", "bytes"),
    *("seconds", "noise", "count", "source"),
)
#: What reading something else raises.
_NO_TABLE = (
    *(OSError, pa.ArrowException),
    *(AttributeError, KeyError, TypeError, ValueError),
)


def read_rows(path: Path) -> list[Row]:
    """Rows of a table of measured kernels (Parquet, columns as in `COLUMNS`, seconds and bytes).

    Raises
    ------
    InputError
        If it is no such table.
    """
    try:
        table = pq.read_table(path, columns=list(COLUMNS)).to_pylist()
        return [_checked(row_of(one)) for one in table]
    except _NO_TABLE as error:
        text = str(error).splitlines()[0][:200]
        raise InputError.of(str(path), "", text, "a table of kernels") from None


def _checked(row: Row) -> Row:
    """The row itself; raises ValueError for sizes, seconds or a noise that none can have."""
    kernel, numbers = row.kernel, (row.duration, row.noise)
    if min(kernel.shape) > 0 and all(0 < number < math.inf for number in numbers):
        return row
    name = f"{kernel.kind} {'x'.join(map(str, kernel.shape))}"
    raise ValueError(f"{name}: sizes, seconds and noise must be above 0")


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes such a table, whole or not at all."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        kernel = row.kernel
        shape = "x".join(map(str, kernel.shape))
        what = kernel.kind, kernel.layout, kernel.dtype, shape, kernel.bytes
        values = *what, row.duration, row.noise, row.count, row.source
        for name, value in zip(COLUMNS, values, strict=True):
            columns.setdefault(name, []).append(value)
    with files.replacing(path) as beside:
        pq.write_table(pa.table(columns), beside)
