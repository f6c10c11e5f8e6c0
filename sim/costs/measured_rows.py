"""The table of kernels that one machine measured, as a Parquet file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prestep.sim import files
from prestep.sim.costs.tables import Row
from prestep.sim.errors import InputError, Mistake
from prestep.sim.graph.kernel import Kernel

COLUMNS = (
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


def read_rows(path: Path) -> list[Row]:
    """Rows of a table of measured kernels (Parquet, columns as in `COLUMNS`, seconds and bytes).

    Raises
    ------
    InputError
        If it is no such table.
    """
    try:
        table = pq.read_table(path, columns=list(COLUMNS)).to_pylist()
        return [_row(one) for one in table]
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise InputError(
            Mistake(
                str(path), "", str(error).splitlines()[0][:200], "a table of kernels"
            )
        ) from None


def _row(one: Mapping[str, Any]) -> Row:
    shape = tuple(int(size) for size in str(one["shape"]).split("x"))
    time, noise = float(one["seconds"]), float(one["noise"])
    if not (
        math.isfinite(time)
        and time > 0
        and math.isfinite(noise)
        and noise > 0
        and min(shape) > 0
    ):
        raise ValueError(
            f"{one['kind']} {one['shape']}: sizes, seconds and noise must be above 0"
        )
    kernel = Kernel(
        str(one["kind"]),
        shape,
        str(one["dtype"]),
        str(one["layout"]),
        float(one["bytes"]),
    )
    return Row(kernel, time, noise, int(one["count"]), str(one["source"]))


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes such a table, whole or not at all."""
    listed = [
        (
            k.kind,
            k.layout,
            k.dtype,
            "x".join(map(str, k.shape)),
            k.bytes,
            row.duration,
            row.noise,
            row.count,
            row.source,
        )
        for row in rows
        for k in (row.kernel,)
    ]
    columns = (
        dict(zip(COLUMNS, zip(*listed, strict=True), strict=True)) if listed else {}
    )
    with files.replacing(path) as beside:
        pq.write_table(
            pa.table({name: list(column) for name, column in columns.items()}), beside
        )
