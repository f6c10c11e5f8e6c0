"""Packed samples of which only the mean length of a document is known.

Lengths between nothing and a whole sample then have the distribution of largest entropy: a density that falls (or
rises) exponentially, with one rate for each mean.
"""

from __future__ import annotations

from functools import cache
from math import expm1, sqrt
from statistics import NormalDist

#: Halvings of an interval of rates: more than a float has bits.
HALVINGS = 60


def weighted(mean: float, longest: int) -> float:
    """Mean length of the document that a token is in: long ones hold more tokens, twice the mean where all are short.

    Attention's work for each token grows with this length.

    Examples
    --------
    >>> round(weighted(512, 1024)), round(weighted(10, 10_000)), weighted(1024, 1024)
    (683, 20, 1024)
    """
    share = mean / longest
    return longest if share >= 1.0 else longest * _square(share) / share


def pieces(samples: int, tokens: int, mean: float) -> tuple[int, int]:
    """Equal pieces with the squares of all documents: how many of so many packed samples, and tokens of each.

    Examples
    --------
    >>> pieces(1, 4096, 256)
    (8, 512)
    """
    if mean >= tokens:
        return samples, tokens
    length = weighted(mean, tokens)
    count = max(1, round(samples * tokens / length))
    return count, min(tokens, round(sqrt(samples * tokens * length / count)))


def most(mean: float, longest: int, samples: int) -> float:
    """Documents of the sample that has most, of so many packed ones; for one sample the mean number.

    Where packs begin and end is chance, so that counts vary as those of renewals do.

    Examples
    --------
    >>> round(most(100, 10_000, 1)), round(most(100, 10_000, 8))
    (100, 114)
    """
    share = min(1.0, mean / longest)
    spread = sqrt(max(0.0, _square(share) - share * share) / share**3)
    # The largest of n normal draws (Blom's formula).
    above = NormalDist().inv_cdf((samples - 0.375) / (samples + 0.25))
    return 1.0 / share + spread * above


@cache
def _square(mean: float) -> float:
    """Mean square of lengths between 0 and 1 with this mean: the integral of their density by parts."""
    if mean >= 1.0:
        return 1.0
    low, high = -2.0 / (1.0 - mean), 2.0 / mean
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        low, high = (rate, high) if _mean(rate) > mean else (low, rate)
    return mean + (2 * mean - 1) / rate if abs(rate) > 1e-6 else 1 / 3


def _mean(rate: float) -> float:
    """Mean of lengths between 0 and 1 whose density falls at a rate."""
    if abs(rate) < 1e-6:
        return 0.5
    return 1 / rate - (1 / expm1(rate) if rate < 700 else 0.0)
