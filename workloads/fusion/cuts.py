"""How DistributedDataParallel cuts compiled functions into graphs, so that reduction can start before all has run."""

from __future__ import annotations

from collections.abc import Sequence

#: torch.distributed._DEFAULT_FIRST_BUCKET_BYTES: the cut nearest the output comes early.
FIRST_BUCKET = 2.0**20


def cut(sizes: Sequence[float], cap: float | None) -> list[list[int]]:
    """Consecutive units grouped from the back: a group closes once its parameters reach ``cap`` bytes.

    >>> cut([1.0, 30.0, 30.0], 25.0)
    [[0], [1], [2]]
    """
    groups: list[list[int]] = [[]]
    size = 0.0
    for unit in reversed(range(len(sizes))):
        if cap is not None and size >= (
            min(FIRST_BUCKET, cap) if len(groups) == 1 else cap
        ):
            groups.insert(0, [])
            size = 0.0
        groups[0].insert(0, unit)
        size += sizes[unit]
    return groups
