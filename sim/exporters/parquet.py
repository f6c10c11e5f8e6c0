"""The timeline as a Parquet file: columns of `prestep.sim.analysis.timeline.SPANS`, seconds and bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet

from prestep.sim import files
from prestep.sim.analysis.arrow import from_arrow, to_arrow
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.analysis.spans import MOST, with_kernels
from prestep.sim.analysis.timeline import Timeline
from prestep.sim.errors import PrestepError

SUFFIXES = (".parquet",)


def write(result: Prediction, path: str | Path, kernels: float = MOST) -> str:
    """Write the timeline; the result without it is in the file's metadata under `prestep.result` (JSON).

    Rows of layers are opened into at most so many `kernels`; returns which are.

    Raises
    ------
    PrestepError
        If the result has no timeline.
    """
    opened, said = with_kernels(result, kernels)
    if opened.timeline is None:
        raise PrestepError(f"{path}: the result has no timeline to write")
    table = to_arrow(opened.timeline)
    summary = json.dumps(json.loads(result.to_json()))
    table = table.replace_schema_metadata(
        {**(table.schema.metadata or {}), b"prestep.result": summary.encode()}
    )
    # Arrow takes names in UTF-8 alone, and a name may have any bytes: it is given open files.
    with files.replacing(path) as beside, beside.open("wb") as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")
    return said


def read(path: str | Path) -> Timeline:
    """The timeline of a file that `write` made."""
    content = pyarrow.BufferReader(Path(path).read_bytes())
    return from_arrow(pyarrow.parquet.read_table(content))
