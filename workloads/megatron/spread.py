"""How experts and their tokens are spread over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, lcm

from prestep.workloads.parallel.group import Group
from prestep.workloads.routing import Loads

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
        Hosts that the group lies on; trays of one NVLink domain are one, since every rank there is reached directly.
    layers : tuple of tuple of float
        The loads of every layer with experts, where they differ; those of layers beyond are the last's.
    consecutive : bool
        Whether a token's experts are neighbours, and the next token's the next ones.
    """

    group: Group
    tensor: Group | None
    loads: Loads
    hosts: int = 1
    layers: tuple[Loads, ...] = ()
    consecutive: bool = False

    def met(self, places: int, experts: int, chosen: int) -> float:
        """Of so many places with equal parts of the experts, the mean number that a token's choices fall into."""
        count = consecutive if self.consecutive else distinct
        return count(places, experts, chosen)

    def of(self, layer: int) -> Spread:
        """With the loads of a layer, counted from 0 among those with experts."""
        if not self.layers:
            return self
        return replace(self, loads=self.layers[min(layer, len(self.layers) - 1)])


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


def consecutive(groups: int, experts: int, chosen: int) -> float:
    """Mean number of groups of experts that ``chosen`` neighbours fall into, where every token takes the next ones."""
    each = experts // groups
    starts = range(0, lcm(experts, chosen), chosen)
    met = (
        len({(start + i) % experts // each for i in range(chosen)}) for start in starts
    )
    return sum(met) / len(starts)
