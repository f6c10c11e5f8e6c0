"""Lengths of rollouts: a distribution that is cut off at the longest, drawn by its quantiles; and how they pack.

Nothing is random: n lengths are the n quantiles in the middle of n equal parts, scaled so that their mean is the one
that the scenario says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from statistics import NormalDist

from prestep.sim.errors import PrestepError
from prestep.sim.rl.section import Rl

_HALVINGS = 60


@cache
def generated(rl: Rl, count: int) -> tuple[int, ...]:
    """Tokens that each of `count` rollouts generates, the shortest first; none is longer than allowed.

    Their mean is that of the scenario, within half a token.
    """
    most, mean = rl.most_new_tokens, rl.mean_new_tokens
    shape = _shape(rl)
    points = [shape((at + 0.5) / count) for at in range(count)]
    scale = _scale(points, mean, most)
    return tuple(max(1, min(most, round(scale * point))) for point in points)


def _shape(rl: Rl) -> Callable[[float], float]:
    """Quantiles of the distribution, to be scaled."""
    if rl.lengths == "constant":
        return lambda _: 1.0
    if rl.lengths == "exponential":
        return lambda share: -math.log(1 - share)
    normal = NormalDist(0.0, rl.spread)
    return lambda share: math.exp(normal.inv_cdf(share))


def _scale(points: Sequence[float], mean: float, most: float) -> float:
    """The factor at which points that are cut off at `most` have this mean; the mean rises with it."""
    low, high = 0.0, most / min(points)
    if mean > most:
        raise PrestepError(f"a mean of {mean} tokens, of at most {most}")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        reached = sum(min(most, middle * point) for point in points) / len(points)
        low, high = (middle, high) if reached < mean else (low, middle)
    return high


def packs(lengths: Sequence[int], room: int) -> int:
    """Packs of at most `room` tokens that hold all lengths: first fit, the longest first."""
    left: list[int] = []
    for length in sorted(lengths, reverse=True):
        for at, free in enumerate(left):
            if length <= free:
                left[at] -= length
                break
        else:
            left.append(room - length)
    return len(left)
