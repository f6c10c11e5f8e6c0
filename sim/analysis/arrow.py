"""Arrow columns from plain values, without pandas; a timeline as an Arrow table, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from prestep.sim.analysis.timeline import SPANS, TEXT, Timeline, Words


def column(values: Sequence[Any], kind: Any) -> Any:
    """An Arrow array of the values. pyarrow's own way imports pandas first: half a second at the end of every sweep."""
    valid = np.array([value is not None for value in values], bool)
    if pa.types.is_string(kind):
        data = _texts(values)
    elif pa.types.is_boolean(kind):
        data = [_bits([bool(value) for value in values])]
    else:
        data = [_numbers(values, kind)]
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), *data])


def _texts(values: Sequence[Any]) -> list[pa.Buffer]:
    """Where each text begins, and all texts one after the other."""
    texts = [b"" if value is None else str(value).encode() for value in values]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return [pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(texts))]


def _bits(flags: Sequence[bool] | np.ndarray) -> pa.Buffer:
    packed = np.packbits(np.array(flags, bool), bitorder="little")
    return pa.py_buffer(packed.tobytes())


def _numbers(values: Sequence[Any], kind: Any) -> pa.Buffer:
    dtype = np.int64 if pa.types.is_integer(kind) else np.float64
    return pa.py_buffer(np.array([value or 0 for value in values], dtype).tobytes())


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
