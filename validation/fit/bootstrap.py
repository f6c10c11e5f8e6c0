"""Intervals by resampling: how far a number could be off had other rows of the same kind been measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000
LEVEL = 0.90
SEED = 8  # the same rows give the same interval


@dataclass(frozen=True)
class Estimate:
    """A number with its bootstrap interval at `LEVEL`, and how many rows it rests on."""

    value: float
    low: float
    high: float
    rows: int

    def __str__(self) -> str:
        return f"{self.value:.4g} ({100 * LEVEL:.0f} % interval {self.low:.4g} to {self.high:.4g}, {self.rows} rows)"

    def to_toml(self) -> str:
        return f"{{ value = {self.value:.5g}, low = {self.low:.5g}, high = {self.high:.5g}, rows = {self.rows} }}"


def estimate(
    values: Sequence[float],
    statistic: Callable[[np.ndarray], np.ndarray] = lambda x: np.median(x, axis=-1),
) -> Estimate:
    """The statistic of the values and its interval; of one value the interval is the value.

    Parameters
    ----------
    values
        At least one.
    statistic
        Reduces the last axis.
    """
    given = np.asarray(values, float)
    draws = np.random.default_rng(SEED).integers(0, len(given), (DRAWS, len(given)))
    replicates = statistic(given[draws])
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(statistic(given)), float(low), float(high), len(given))


def of_ratios(ratios: Sequence[float]) -> Estimate:
    """The middle of ratios, in log, so that twice and half are as far off."""
    logs = estimate(np.log(np.asarray(ratios, float)).tolist())
    value, low, high = np.exp([logs.value, logs.low, logs.high]).tolist()
    return Estimate(value, low, high, logs.rows)
