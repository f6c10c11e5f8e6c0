"""Which experts tokens go to, where nobody computes the scores that decide it."""

from __future__ import annotations

import functools
from fractions import Fraction

Choices = tuple[tuple[int, ...], ...]


@functools.cache
def choices(rows: int, count: int, experts: int, busiest: float = 1.0) -> Choices:
    """`count` different experts for each of `rows` tokens.

    Expert 0 takes `busiest` times its share of all choices, at most one of every token; the others take turns. With 1,
    all experts are chosen equally often.
    """
    if count >= experts:
        return (tuple(range(experts)),) * rows
    share = min(Fraction(1), Fraction(busiest) * count / experts)
    return tuple(_chosen(row, count, experts, share) for row in range(rows))


def _chosen(row: int, count: int, experts: int, share: Fraction) -> tuple[int, ...]:
    before = int(row * share)
    first = int((row + 1) * share) - before
    turn = row * count - before
    others = (1 + (turn + i) % (experts - 1) for i in range(count - first))
    return *(0,) * first, *others


def described(busiest: float) -> str:
    """What is assumed, in words."""
    if busiest == 1.0:
        return "experts balanced"
    return f"experts: the first has {busiest:g} times its share"
