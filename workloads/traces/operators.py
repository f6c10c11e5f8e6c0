"""Operators of a framework, which launch the kernels of a trace: their texts, and metadata of their collectives."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class Meta(NamedTuple):
    """What the metadata of a collective says; see the columns of the schema."""

    word: str
    collective: str = ""
    bytes: float = 0.0
    sequence: int = -1
    peers: str = ""
    group: str = ""


# What a kernel or a call is of a collective, from its kind, its name and its metadata if it has any.
Communication = Callable[[str, str, Meta | None], Meta]


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
        self.shapes: dict[tuple[str, bytes, bytes], int] = {("", b"", b""): 0}
        self.meta: dict[int, Meta] = {}
        self._shaped: set[int] | None = None

    def add(self, external: int, name: str, dims: bytes, types: bytes) -> None:
        """Adds an operator."""
        self._append(external, (name, dims, types))
        self.meta.pop(external, None)

    def _append(self, external: int, shaped: tuple[str, bytes, bytes]) -> None:
        self.ids.append(external)
        self.places.append(self.shapes.setdefault(shaped, len(self.shapes)))

    def names(self) -> dict[int, str]:
        """External id -> name."""
        keys = list(self.shapes)
        return {
            external: keys[place][0]
            for external, place in zip(self.ids, self.places, strict=True)
        }

    def fill(self, external: int, name: str, dims: bytes, types: bytes) -> None:
        """Gives shapes and types to an operator that has none of its own."""
        if self._shaped is None:
            self._shaped = self._with_shapes()
        if external not in self._shaped:
            self._append(external, (name, dims, types))

    def _with_shapes(self) -> set[int]:
        """External ids of the operators that have shapes of their own."""
        keys = list(self.shapes)
        pairs = zip(self.ids, self.places, strict=True)
        return {i for i, place in pairs if keys[place][1] not in (b"", b"[]")}

    def of(self, externals: np.ndarray) -> np.ndarray:
        """Place in `shapes` of the operator of every id; -1 where there is none."""
        if not len(self.ids):
            return np.full(len(externals), -1)
        ids = np.frombuffer(self.ids, np.int64)
        places = np.frombuffer(self.places, np.int64)
        order = np.argsort(ids, kind="stable")
        at = np.searchsorted(ids[order], externals, "right") - 1
        present = (at >= 0) & (ids[order][at] == externals)
        return np.where(present, places[order][at], -1)
