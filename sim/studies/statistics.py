"""Means and their confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its confidence interval (Student's t, 95 %); no width is known of one value."""
    if len(set(values)) == 1:
        return values[0], 0.0 if len(
            values
        ) > 1 else math.nan  # the mean of equals is theirs to the last digit
    mean = statistics.fmean(values)
    n = len(values) - 1
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    # Cornish-Fisher expansion of Student's quantile (Abramowitz and Stegun, 26.7.5).
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))
