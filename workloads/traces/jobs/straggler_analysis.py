"""Traces of ByteDance's StragglerAnalysis (OSDI 2025): a Parquet table of all operations of a job.

Columns: `dp_rank`, `stage`, `step`, `optype` (`operations.KINDS`), `seq_id` (number among operations of the kind in a
step of a rank), `start_ts` and `duration` (s), `mc` (chunk of the stage), `gmc` (chunk of the model).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from prestep.sim.errors import InputError, Mistake
from prestep.workloads.traces.operations import KINDS, OPTIMIZER, Operations, Slot

NUMBERS = ("dp_rank", "stage", "step", "seq_id", "start_ts", "duration", "mc", "gmc")
COLUMNS = ("optype", *NUMBERS)
SLOT = ["stage", "optype", "seq_id"]


def sniff(path: Path) -> bool:
    """Whether a file is a Parquet table with these columns."""
    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            return False
    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        return False
    return {"optype", "seq_id", "start_ts"} <= set(names)


def read(path: Path) -> Operations:
    """The operations of a job.

    Raises
    ------
    InputError
        For a file that is damaged or lacks columns, and ranks or steps that did not do the same.
    """
    table = _table(path)
    first = table[(table.step == table.step.min()) & (table.dp_rank == 0)]
    slots = tuple(
        Slot(int(r.stage), str(r.optype), int(r.seq_id), int(r.mc), int(r.gmc))
        for r in first.sort_values(SLOT).itertuples()
    )
    steps = sorted(table.step.unique().tolist())
    ranks = int(table.dp_rank.max()) + 1
    shape = len(slots), len(steps), ranks
    _check(table, path, shape)
    table = table.sort_values([*SLOT, "step", "dp_rank"])
    start = table.start_ts.to_numpy(float).reshape(shape)
    length = table.duration.to_numpy(float).reshape(shape)
    return Operations(path.name, slots, tuple(map(int, steps)), start, start + length)


def _table(path: Path) -> pd.DataFrame:
    """The table, checked by itself."""
    try:
        table: pd.DataFrame = pq.read_table(path).to_pandas()
    except (pa.ArrowException, OSError) as error:
        found = str(error).splitlines()[0][:80]
        raise InputError.of(
            str(path), "", found, "a whole Parquet file", "copy it again"
        ) from None
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise InputError(
            [Mistake(path.name, name, "nothing", "a column") for name in missing]
        )
    table = table.astype({"optype": str})
    InputError.check(list(_wrong_cells(table, path.name)))
    return table


def _wrong_cells(table: pd.DataFrame, where: str) -> Iterator[Mistake]:
    """Kinds that do not exist, numbers that are none, and a job without an end."""
    kinds = set(table.optype)
    for kind in sorted(kinds - set(KINDS)):
        yield Mistake(where, "optype", f'"{kind}"', f"one of {', '.join(KINDS)}")
    for name in NUMBERS:
        if not np.isfinite(table[name].to_numpy(float)).all():
            yield Mistake(where, name, "a cell without a number", "numbers")
    if OPTIMIZER not in kinds:
        yield Mistake(where, "optype", "no optimizer", "steps that end")


def _check(table: pd.DataFrame, path: Path, shape: tuple[int, int, int]) -> None:
    """Every rank has to do the same in every step."""
    slots, steps, ranks = shape
    each = table.groupby(SLOT).size()
    whole = len(each) == slots and (each == steps * ranks).all()
    if not whole or table.duplicated([*SLOT, "step", "dp_rank"]).any():
        found = f"{len(table)} operations"
        expected = f"{slots} operations in each of {steps} steps on each of {ranks} ranks of every stage"
        raise InputError.of(path.name, "", found, expected)
