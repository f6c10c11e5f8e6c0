"""Links of many pairs at once, in columns: what routes are made of, and what they carry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from prestep.topologies.core.links import Floats, Ints, compact


class Piece(NamedTuple):
    """Links of several pairs: row `rows[i, j]` carries `share[j]` of the bytes of pair `pairs[i]`."""

    pairs: Ints
    rows: Ints
    share: Floats


class Core(NamedTuple):
    """Pairs (positions of them) that go the same way between the switches."""

    pairs: Ints
    rows: Ints
    share: Floats

    def piece(self) -> Piece:
        """The same links, written out for every pair."""
        shape = len(self.pairs), len(self.rows)
        return Piece(self.pairs, np.broadcast_to(self.rows, shape), self.share)


def add_loads(
    total: Floats, pieces: Iterable[Piece], cores: Iterable[Core], sent: Floats
) -> list[Ints]:
    """Adds to `total`, which has every row, what pairs that send `sent[i]` bytes carry; returns the rows of these."""
    added = []
    for piece in pieces:
        each = np.multiply.outer(sent[piece.pairs], piece.share).ravel()
        # Few rows of a large cluster: what they carry is added up among themselves.
        rows, where = compact(piece.rows.ravel())
        total[rows] += np.bincount(where, weights=each)
        added.append(rows)
    for core in cores:
        total[core.rows] += core.share * sent[core.pairs].sum()
        added.append(core.rows)
    return added


def add_in_order(total: Floats, pieces: list[Piece], sent: Floats) -> Ints:
    """`add_loads` pair by pair: sums do not depend on which of them were routed at once."""
    pair, row, share = columns(pieces)
    np.add.at(total, row, share * sent[pair])
    return row


def columns(pieces: list[Piece]) -> tuple[Ints, Ints, Floats]:
    """(pair, row, share) of every link, sorted by pair, then by row."""
    if not pieces:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0)
    pairs = [np.repeat(piece.pairs, piece.rows.shape[1]) for piece in pieces]
    rows = [piece.rows.ravel() for piece in pieces]
    shares = [np.tile(piece.share, len(piece.pairs)) for piece in pieces]
    pair, row = np.concatenate(pairs), np.concatenate(rows)
    share = np.concatenate(shares)
    order = np.lexsort((row, pair))
    return pair[order], row[order], share[order]
