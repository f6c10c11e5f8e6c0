"""Rows that are alike, found with numpy."""

from __future__ import annotations

import numpy as np

from prestep.topologies.core.links import Ints


def opaque(table: Ints) -> np.ndarray:
    """Each row of a table as one opaque value."""
    packed = np.ascontiguousarray(table.astype(np.int32))
    return packed.view(
        np.dtype((np.void, packed.dtype.itemsize * packed.shape[1]))
    ).ravel()


def distinct(table: Ints) -> tuple[Ints, Ints]:
    """The first of all rows that are equal, and for every row the place of its equal among those."""
    _, first, which = np.unique(opaque(table), return_index=True, return_inverse=True)
    return first, which


def groups(key: Ints) -> list[tuple[int, Ints]]:
    """Every value of `key` and where it stands."""
    order = np.argsort(key, kind="stable")
    if not len(order):
        return []
    edges = np.flatnonzero(np.diff(key[order])) + 1
    return [(int(key[part[0]]), part) for part in np.split(order, edges)]
