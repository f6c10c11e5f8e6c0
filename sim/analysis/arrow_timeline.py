"""A timeline as an Arrow table, and back; apart from the timeline, which is simulated where nobody needs pyarrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from prestep.sim.analysis.timeline import SPANS, TEXT, Timeline, Words


def to_arrow(timeline: Timeline) -> pa.Table:
    """The timeline as an Arrow table with the columns of SPANS."""
    arrays = []
    for column in timeline.columns.values():
        if isinstance(column, Words):
            words = pa.array(column.words, pa.string())
            arrays.append(
                pa.DictionaryArray.from_arrays(
                    pa.array(column.codes, pa.int32()), words
                )
            )
        else:
            arrays.append(pa.array(column))
    return pa.Table.from_arrays(arrays, schema=arrow_schema())


def from_arrow(table: pa.Table) -> Timeline:
    """Inverse of `to_arrow`; texts may be plain or dictionary-encoded."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if SPANS.get(name) == TEXT:
            coded = (
                column if hasattr(column, "dictionary") else column.dictionary_encode()
            )
            columns[name] = Words(
                coded.indices.to_numpy(), tuple(coded.dictionary.to_pylist())
            )
        else:
            columns[name] = column.to_numpy(zero_copy_only=False)
    return Timeline.build(**columns)


def arrow_schema() -> pa.Schema:
    """Arrow schema of SPANS, with units as metadata."""
    types = {TEXT: pa.dictionary(pa.int32(), pa.string())}
    fields = [
        pa.field(name, types.get(kind) or pa.from_numpy_dtype(np.dtype(kind)))
        for name, kind in SPANS.items()
    ]
    return pa.schema(
        fields, metadata={"prestep.spans": "1", "prestep.units": "seconds, bytes"}
    )
