"""Colour refinement (Weisfeiler and Leman 1968): nodes of one colour cannot be told apart by where they stand.

Nodes begin with colours of their own. In each round those of one colour part whose neighbours have other colours, or
lead there over other links.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prestep.topologies.core.links import Ints, numbered


def rounds(colours: Ints, sources: Ints, targets: Ints, labels: Ints) -> Iterator[Ints]:
    """Colours before and after each round, until no more nodes part.

    Parameters
    ----------
    colours
        Of every node, from 0.
    sources, targets, labels
        Of every link in one direction: a node of which the other learns, and what the link is.
    """
    while True:
        yield colours
        seen = np.zeros(len(colours), dtype=np.uint64)
        np.add.at(seen, targets, _mixed(colours[sources], labels))
        finer = numbered(np.stack([colours.astype(np.uint64), seen], axis=1))
        if finer.max(initial=0) == colours.max(initial=0):
            return
        colours = finer


def _mixed(colours: Ints, labels: Ints) -> np.ndarray:
    """A number of 64 bits for each pair (splitmix), the same on every machine: sums of them tell multisets apart."""
    with np.errstate(over="ignore"):
        z = colours.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += (labels.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
