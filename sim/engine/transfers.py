"""Point-to-point transfers that share links: when each ends, without an engine.

For questions about a network alone (a permutation, an incast, a shuffle). Rates are weighted max-min fair
(`sim.engine.fair_share`) and solved anew at every moment at which a transfer ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.engine.fair_share import Incidence, rates

# Relative: transfers that end within this of each other end together.
TOGETHER = 1e-9


@dataclass(frozen=True, eq=False)
class Ends:
    """Seconds at which each transfer's last byte leaves, and how often rates were solved."""

    time: np.ndarray
    solves: int


def ends(
    paths: Sequence[tuple[np.ndarray, np.ndarray]],
    size: np.ndarray,
    bandwidth: np.ndarray,
    cap: float = float("inf"),
) -> Ends:
    """Transfers of `size` bytes that all begin at 0.

    Parameters
    ----------
    paths : sequence of (links, share)
        As `Fabric.spread` or `topologies.fabric.ecmp.path` gives them.
    size : array of float
        Bytes of each; above 0.
    bandwidth : array of float
        Bytes/s of every link of the fabric.
    cap : float
        Most bytes/s of one transfer.
    """
    incidence = Incidence.of(
        [links for links, _ in paths], [share for _, share in paths]
    )
    left, time = np.asarray(size, dtype=np.float64).copy(), np.zeros(len(paths))
    here, now, solves = np.arange(len(paths)), 0.0, 0
    while len(here):
        speed = rates(incidence, np.full(len(here), cap), bandwidth)[0]
        solves += 1
        need = left[here] / speed
        step = float(need.min())
        done = need <= step * (1 + TOGETHER)
        now += step
        left[here] -= speed * step
        time[here[done]] = now
        here, incidence = here[~done], incidence.of_activities(~done)
    return Ends(time, solves)
