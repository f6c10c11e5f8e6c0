"""Paths and their shares: how many are kept, and what all of them carry on each link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prestep.topologies.core.links import Floats, Ints

Paths = Sequence[tuple[Ints, float]]

# Equal-cost paths kept for one pair: a fat tree has one per spine, and a hash spreads no wider in practice.
MAX_PATHS = 64
STRIDE = 7919  # a prime above the numbers of switches in a tier


def chosen(total: int, shift: int) -> list[int]:
    """Numbers of the paths that are kept of `total`; `shift` is any number that the two ends make."""
    if total <= MAX_PATHS:
        return list(range(total))
    # One from every stretch of equal length, at a place of its own: even at the first switch and at the last.
    step = total // MAX_PATHS
    return [
        at * total // MAX_PATHS + (shift + at * STRIDE) % step
        for at in range(MAX_PATHS)
    ]


def summed(paths: Paths) -> tuple[Ints, Floats]:
    """What every link carries of all paths: rows in link order, and the share on each."""
    load: dict[int, float] = {}
    for path, share in paths:
        for row in path.tolist():
            load[row] = load.get(row, 0.0) + share
    rows = sorted(load)
    return np.array(rows, dtype=np.int64), np.array(
        [load[row] for row in rows], dtype=np.float64
    )
