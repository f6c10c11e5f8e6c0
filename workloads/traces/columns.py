"""Rows of a trace as columns while a reader collects them: a number or a code each, never an object.

Texts repeat (a trace has a few hundred names and shapes), so each is kept once. What a row takes from the operator that
launched it is joined at the end, as operators may stand anywhere in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from prestep.workloads.traces.operators import Communication, Meta, Operators, Texts
from prestep.workloads.traces.schema import KINDS, SCHEMA

NONE = -(1 << 63)  # no external id
TALK = ("kernel", "communication")
# Columns as they are collected; texts by their codes, `own` by its place in `shapes`.
COLUMNS = {
    "kind": np.int64,
    "name": np.int64,
    "own": np.int64,
    "stream": np.int64,
    "correlation": np.int64,
    "target": np.int64,
    "sequence": np.int64,
    "external": np.int64,
    "start": np.float64,
    "end": np.float64,
    "bytes": np.float64,
}
# Columns that come into the table as they were collected.
PLAIN = ("kind", "name", "stream", "correlation", "target")


class Columns:
    """Spans of one rank; times in microseconds of the file until :meth:`table`."""

    def __init__(self) -> None:
        self.texts = Texts()
        self.shapes: dict[tuple[str, bytes, bytes], int] = {("", b"", b""): 0}
        self.meta: dict[int, Meta] = {}
        self.length = 0
        self._fresh: list[tuple[int | float, ...]] = []
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}

    def __len__(self) -> int:
        return self.length

    def add(
        self,
        kind: str,
        name: str,
        stream: int,
        start: float,
        end: float,
        external: int = NONE,
        correlation: int = -1,
        size: float = 0.0,
        own: tuple[str, bytes, bytes] | None = None,
        target: int = -1,
        sequence: int = -1,
    ) -> int:
        """Adds a row; `own` are the operator, shapes and types of one that is its own operator. Returns its place."""
        shape = -1 if own is None else self.shapes.setdefault(own, len(self.shapes))
        codes = self.texts.codes
        self._fresh.append(
            (
                _KIND[kind],
                codes.setdefault(name, len(codes)),
                shape,
                stream,
                correlation,
                target,
                sequence,
                external,
                start,
                end,
                size,
            )
        )
        self.length += 1
        return self.length - 1

    def pack(self) -> None:
        """Makes columns of the rows added since the last time."""
        for (name, dtype), values in zip(
            COLUMNS.items(), zip(*self._fresh, strict=True), strict=False
        ):
            self._parts[name].append(np.array(values, dtype))
        self._fresh.clear()

    @property
    def first(self) -> float:
        """The earliest start; 0 if there is none."""
        self.pack()
        return float(
            min((part.min() for part in self._parts["start"] if len(part)), default=0.0)
        )

    def column(self, name: str) -> np.ndarray:
        """All values of a column, in the order in which rows were added."""
        parts = self._parts[name]
        return np.concatenate(parts) if parts else np.zeros(0, COLUMNS[name])

    def table(
        self,
        operators: Operators,
        rank: int,
        first: float,
        communication: Communication,
        gradient: Callable[[str, str], float],
    ) -> pa.Table:
        """The rows as a table of the schema, in seconds after `first`, in the order of their starts.

        Parameters
        ----------
        operators : Operators
            The operators that launched the rows, by external id.
        rank : int
            The rank of all rows.
        first : float
            The time in the file that becomes 0, microseconds.
        communication : Communication
            What a kernel or call is of a collective.
        gradient : callable
            Bytes of a gradient from its shapes and types.
        """
        self.pack()
        columns = self._times(first)
        columns |= {name: self.column(name) for name in PLAIN}
        columns |= self._described(operators)
        columns |= self._collectives(operators, communication)
        self._size_gradients(columns, gradient)
        order = np.argsort(self.column("start"), kind="stable")
        ranks = pa.array(np.full(len(self), rank, np.int32))
        arrays = [
            self._array(entry, columns[entry.name][order]) for entry in list(SCHEMA)[1:]
        ]
        return pa.Table.from_arrays([ranks, *arrays], schema=SCHEMA)

    def _times(self, first: float) -> dict[str, np.ndarray]:
        """Start and end of every row in seconds after `first`."""
        return {name: (self.column(name) - first) * 1e-6 for name in ("start", "end")}

    def _size_gradients(
        self, columns: dict[str, np.ndarray], gradient: Callable[[str, str], float]
    ) -> None:
        """Fills in the bytes of gradients."""
        words = list(self.texts.codes)
        shape, dtype = columns["shape"], columns["dtype"]
        for row in np.flatnonzero(columns["kind"] == _KIND["gradient"]).tolist():
            columns["bytes"][row] = gradient(words[shape[row]], words[dtype[row]])

    def _array(self, entry: pa.Field, values: np.ndarray) -> pa.Array:
        """A column of the table."""
        if entry.name == "kind":
            return _KINDS.column(values)
        if pa.types.is_dictionary(entry.type):
            return self.texts.column(values)
        return pa.array(values)

    def _described(self, operators: Operators) -> dict[str, np.ndarray]:
        """Codes of operator, shapes and types of every row: its own, or those of the operator that launched it."""
        kind, own = self.column("kind"), self.column("own")
        launching = operators.of(self.column("external"))
        shaped = np.isin(kind, [_KIND[k] for k in (*TALK, "gradient")])
        columns = {
            name: np.zeros(len(self), np.int64)
            for name in ("operator", "shape", "dtype")
        }
        for rows, places, shapes in (
            (own >= 0, own, self.shapes),
            ((own < 0) & (launching >= 0), launching, operators.shapes),
        ):
            codes = self._codes(shapes)
            for k, (name, column) in enumerate(columns.items()):
                where = rows if name == "operator" else rows & shaped
                column[where] = codes[places[where], k]
        return columns

    def _codes(self, shapes: Iterable[tuple[str, bytes, bytes]]) -> np.ndarray:
        """Codes of the texts of operators: a row each, with its name, shapes and types."""
        code = self.texts.code
        rows = [(code(name), code(_text(d)), code(_text(t))) for name, d, t in shapes]
        return np.array(rows, np.int64)

    def _collectives(
        self, operators: Operators, communication: Communication
    ) -> dict[str, np.ndarray]:
        """What rows have to do with collectives: by their metadata where they have it, else by name."""
        talks = np.isin(self.column("kind"), [_KIND[k] for k in TALK])
        metadata = self._metadata(operators, talks)
        unnamed = talks.copy()
        unnamed[list(metadata)] = False
        words = list(self.texts.codes)
        columns = {
            "bytes": self.column("bytes"),
            "sequence": self.column("sequence"),
            "collective": self._by_name(np.flatnonzero(unnamed), words, communication),
            "group": np.zeros(len(self), np.int64),
            "peers": np.zeros(len(self), np.int64),
        }
        self._by_metadata(metadata, words, communication, columns)
        return columns

    def _metadata(self, operators: Operators, talks: np.ndarray) -> dict[int, Meta]:
        """Row -> metadata of its collective: its own, or that of the operator that launched it."""
        metadata = dict(self.meta)
        if not operators.meta:
            return metadata
        external = self.column("external")
        described = np.isin(external, np.fromiter(operators.meta, np.int64))
        inherits = talks & (self.column("own") < 0) & described
        for row in np.flatnonzero(inherits).tolist():
            metadata.setdefault(row, operators.meta[int(external[row])])
        return metadata

    def _by_name(
        self, rows: np.ndarray, words: list[str], communication: Communication
    ) -> np.ndarray:
        """Codes of the collectives of rows without metadata; each (kind, name) is looked at once."""
        collective = np.zeros(len(self), np.int64)
        pairs, pair_of = np.unique(
            np.stack([self.column("kind")[rows], self.column("name")[rows]]),
            axis=1,
            return_inverse=True,
        )
        pair_of = pair_of.reshape(-1)
        for k, (kind, name) in enumerate(pairs.T.tolist()):
            meta = communication(KINDS[kind], words[name], None)
            if meta.collective:
                collective[rows[pair_of == k]] = self.texts.code(meta.collective)
        return collective

    def _by_metadata(
        self,
        metadata: dict[int, Meta],
        words: list[str],
        communication: Communication,
        columns: dict[str, np.ndarray],
    ) -> None:
        """Fills in the rows whose collective has metadata."""
        kinds, names = self.column("kind"), self.column("name")
        code = self.texts.code
        for row, meta in metadata.items():
            full = communication(KINDS[kinds[row]], words[names[row]], meta)
            if meta.collective:
                columns["bytes"][row] = full.bytes
                columns["sequence"][row] = full.sequence
            columns["collective"][row] = code(full.collective)
            columns["group"][row] = code(full.group)
            columns["peers"][row] = code(full.peers)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


_KIND = {kind: i for i, kind in enumerate(KINDS)}
_KINDS = Texts()
_KINDS.codes = dict(_KIND)
