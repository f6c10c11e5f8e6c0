"""Rates of activities that share links, from lists with one entry per activity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prestep.sim.engine.fair_share import Incidence, rates


def max_min_rates(
    links: Sequence[np.ndarray],
    usage: Sequence[np.ndarray],
    caps: Sequence[float],
    bandwidth: np.ndarray,
) -> list[float]:
    """Payload rates alone, from lists with one entry per activity; see `rates`."""
    limits = np.array(caps, dtype=np.float64)
    result, _ = rates(Incidence.of(links, usage), limits, bandwidth)
    return list(map(float, result))
