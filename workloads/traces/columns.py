"""Rows of a trace as columns while a reader collects them: a number or a code each, never an object.

Texts repeat (a trace has a few hundred names and shapes), so each is kept once. What a row takes from the operator that
launched it is joined at the end, as operators may stand anywhere in a file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from workloads.traces.schema import KINDS, SCHEMA

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


class Meta(NamedTuple):
    """What the metadata of a collective says; see the columns of the schema."""

    word: str
    collective: str = ""
    bytes: float = 0.0
    sequence: int = -1
    peers: str = ""
    group: str = ""


class Texts:
    """Texts by code, each kept once."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {"": 0}

    def code(self, text: str) -> int:
        """The code of a text; 0 is the empty one."""
        return self.codes.setdefault(text, len(self.codes))

    def column(self, codes: np.ndarray) -> pa.DictionaryArray:
        """A text column, which holds only the texts that occur."""
        words = list(self.codes)
        used, dense = np.unique(codes, return_inverse=True)
        return pa.DictionaryArray.from_arrays(
            pa.array(dense.astype(np.int32)),
            pa.array([words[int(u)] for u in used], pa.string()),
        )


class Operators:
    """Operators by external id: name, shapes and types; of two with one id the later counts."""

    def __init__(self) -> None:
        self.ids, self.places = array("q"), array("q")
        self.known: dict[tuple[str, bytes, bytes], int] = {("", b"", b""): 0}
        self.meta: dict[int, Meta] = {}
        self._shaped: set[int] | None = None

    def add(self, external: int, name: str, dims: bytes, types: bytes) -> None:
        known = self.known
        self.ids.append(external)
        self.places.append(known.setdefault((name, dims, types), len(known)))
        if external in self.meta:
            del self.meta[external]

    def names(self) -> dict[int, str]:
        """External id -> name."""
        keys = list(self.known)
        return {
            external: keys[place][0]
            for external, place in zip(self.ids, self.places, strict=True)
        }

    def fill(self, external: int, name: str, dims: bytes, types: bytes) -> None:
        """Shapes and types of an operator that has none of its own."""
        if self._shaped is None:
            keys = list(self.known)
            pairs = zip(self.ids, self.places, strict=True)
            self._shaped = {
                i for i, place in pairs if keys[place][1] not in (b"", b"[]")
            }
        if external not in self._shaped:
            self.ids.append(external)
            self.places.append(
                self.known.setdefault((name, dims, types), len(self.known))
            )

    def of(self, externals: np.ndarray) -> np.ndarray:
        """Place in `known` of the operator of every id; -1 where there is none."""
        ids, places = (
            np.frombuffer(self.ids, np.int64),
            np.frombuffer(self.places, np.int64),
        )
        if not len(ids):
            return np.full(len(externals), -1)
        order = np.argsort(ids, kind="stable")
        at = np.searchsorted(ids[order], externals, "right") - 1
        found = (at >= 0) & (ids[order][at] == externals)
        return np.where(found, places[order][at], -1)


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
        communication: Callable[[str, str, Meta | None], Meta],
        gradient: Callable[[str, str], float],
    ) -> pa.Table:
        """The rows as a table of the schema, in seconds after `first`, in the order of their starts.

        `communication` says what a kernel or call (kind, name, metadata) is of a collective, `gradient` the bytes of
        one from its shapes and types.
        """
        self.pack()
        kind, own, external, start = map(
            self.column, ("kind", "own", "external", "start")
        )
        order = np.argsort(start, kind="stable")
        size, sequence = self.column("bytes"), self.column("sequence")
        operator, shape, dtype = self._described(
            kind, own, operators.of(external), operators
        )
        texts = {
            name: np.zeros(len(self), np.int64)
            for name in ("collective", "group", "peers")
        }
        self._communication(operators, communication, size, sequence, texts)
        words = list(self.texts.codes)
        for row in np.flatnonzero(kind == _KIND["gradient"]).tolist():
            size[row] = gradient(words[shape[row]], words[dtype[row]])
        columns = {
            "kind": kind.astype(np.int64),
            "name": self.column("name"),
            "operator": operator,
            "stream": self.column("stream"),
            "start": (start - first) * 1e-6,
            "end": (self.column("end") - first) * 1e-6,
            "bytes": size,
            **texts,
            "sequence": sequence,
            "correlation": self.column("correlation"),
            "target": self.column("target"),
            "shape": shape,
            "dtype": dtype,
        }
        arrays = [pa.array(np.full(len(self), rank, np.int32))]
        for entry in list(SCHEMA)[1:]:
            values = columns[entry.name][order]
            if entry.name == "kind":
                arrays.append(_KINDS.column(values))
            else:
                arrays.append(
                    self.texts.column(values)
                    if pa.types.is_dictionary(entry.type)
                    else pa.array(values)
                )
        return pa.Table.from_arrays(arrays, schema=SCHEMA)

    def _described(
        self, kind: np.ndarray, own: np.ndarray, of: np.ndarray, operators: Operators
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes of operator, shapes and types of every row."""
        shaped = np.isin(kind, [_KIND[k] for k in (*TALK, "gradient")])
        found = [np.zeros(len(self), np.int64) for _ in range(3)]
        for rows, places, known in (
            (own >= 0, own, self.shapes),
            ((own < 0) & (of >= 0), of, operators.known),
        ):
            code = self.texts.code
            table = np.array(
                [(code(name), code(_text(d)), code(_text(t))) for name, d, t in known],
                np.int64,
            )
            for k, column in enumerate(found):
                where = rows if k == 0 else rows & shaped
                column[where] = table[places[where], k]
        return found[0], found[1], found[2]

    def _communication(
        self,
        operators: Operators,
        communication: Callable[[str, str, Meta | None], Meta],
        size: np.ndarray,
        sequence: np.ndarray,
        texts: dict[str, np.ndarray],
    ) -> None:
        """Fills what rows have to do with collectives: one by one where they say it, else by name."""
        words, code = list(self.texts.codes), self.texts.code
        kinds, names = self.column("kind"), self.column("name")
        talks = np.isin(kinds, [_KIND[k] for k in TALK])
        said = dict(self.meta)
        if operators.meta:
            candidates = talks & (self.column("own") < 0)
            known = np.isin(
                self.column("external"), np.fromiter(operators.meta, np.int64)
            )
            for row in np.flatnonzero(candidates & known).tolist():
                said.setdefault(row, operators.meta[int(self.column("external")[row])])
        unsaid = talks.copy()
        unsaid[list(said)] = False
        pairs, which = np.unique(
            np.stack([kinds[unsaid], names[unsaid]]), axis=1, return_inverse=True
        )
        rows = np.flatnonzero(unsaid)
        for k, (kind, name) in enumerate(pairs.T.tolist()):
            found = communication(KINDS[kind], words[name], None)
            if found.collective:
                texts["collective"][rows[which.reshape(-1) == k]] = code(
                    found.collective
                )
        for row, meta in said.items():
            found = communication(KINDS[kinds[row]], words[names[row]], meta)
            if meta.collective:
                size[row], sequence[row] = found.bytes, found.sequence
            texts["collective"][row] = code(found.collective)
            texts["group"][row], texts["peers"][row] = (
                code(found.group),
                code(found.peers),
            )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


_KIND = {kind: i for i, kind in enumerate(KINDS)}
_KINDS = Texts()
_KINDS.codes = dict(_KIND)
