"""What a transfer puts on links: numbers of links, ascending, and bytes on each (per byte of payload, or in all)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Usage = tuple[np.ndarray, np.ndarray]


def by_link(parts: Sequence[Usage]) -> Usage:
    """The sum of several usages.

    Parameters
    ----------
    parts : sequence of (links, amounts)
        Integer and float arrays of one length each; a link may occur several times, also within a part.

    Returns
    -------
    (links, amounts)
        Every link once, ascending; both empty if there is no part.
    """
    if not parts:
        return np.empty(0, dtype=np.int64), np.empty(0)
    links = np.concatenate([links for links, _ in parts])
    amounts = np.concatenate([amounts for _, amounts in parts])
    unique, at = np.unique(links, return_inverse=True)
    return unique, np.bincount(at, weights=amounts, minlength=len(unique))
