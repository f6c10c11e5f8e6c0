"""How experts and their tokens are spread over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from workloads.job.experts import zipf_exponent
from workloads.job.parallel import Parallel
from workloads.parallel.group import Group

# Of the names of parameters that only the expert data-parallel group shares.
EXPERTS_PREFIX = "experts."


@dataclass(frozen=True)
class Spread:
    """How experts are spread over ranks.

    Attributes
    ----------
    group : Group
        The expert-parallel ranks.
    tensor : Group or None
        Ranks that hold one expert together.
    loads : tuple of float
        Tokens of the busiest rank's experts, over the mean of all experts: the others wait for it.
    hosts : int
        Hosts that the group lies on.
    """

    group: Group
    tensor: Group | None
    loads: tuple[float, ...]
    hosts: int = 1


def loads_of(parallel: Parallel, experts: int) -> tuple[float, ...]:
    """Tokens of every expert over their mean.

    By Zipf's law the i-th most popular expert has i^-s; popularity has nothing to do with an expert's rank, so experts
    are dealt by a fixed shuffle (multiples of a stride that has no divisor in common with their number).
    """
    said = parallel.imbalance
    if not isinstance(said, str):
        return tuple(load * experts / sum(said) for load in said)
    exponent = zipf_exponent(said) or 0.0
    weights = [(i + 1.0) ** -exponent for i in range(experts)]
    mean = sum(weights) / experts
    stride = next(
        n
        for n in range(max(1, round(0.618 * experts)), 2 * experts + 2)
        if _coprime(n, experts)
    )
    return tuple(weights[i * stride % experts] / mean for i in range(experts))


def _coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1


def busiest(
    loads: Sequence[float], ranks: int, capacity: float | None, padded: bool
) -> tuple[float, ...]:
    """Loads of the experts on the rank that has most, after tokens over an expert's capacity are dropped."""
    if capacity is not None:
        loads = [capacity if padded else min(load, capacity) for load in loads]
    local = len(loads) // ranks
    return max(
        (tuple(loads[i : i + local]) for i in range(0, len(loads), local)), key=sum
    )


def distinct(groups: int, experts: int, chosen: int) -> float:
    """Expected groups of experts that a token's choices fall into, when all choices are as likely."""
    rest = experts - experts // groups
    return groups * (1.0 - comb(rest, chosen) / comb(experts, chosen))
