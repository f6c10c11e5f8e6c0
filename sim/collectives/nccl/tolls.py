"""What channels take from the links of a way at a speed: what a walk of NCCL's search adds up at every step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from prestep.sim.collectives.nccl.ways import Way


class Toll(NamedTuple):
    """What a way takes at a speed: hops; number of every link, MB/s that it must have left, and MB/s taken."""

    hops: int
    links: tuple[tuple[int, float, int], ...]


class Tolls(dict[int, Toll | None]):
    """What each of some ways takes at a speed in MB/s, worked out when asked for; None: farther than the limit."""

    def __init__(self, ways: Sequence[Way], speed: int, limit: int) -> None:
        super().__init__()
        self.ways, self.speed, self.limit = ways, speed, limit

    def __missing__(self, at: int) -> Toll | None:
        way = self.ways[at]
        toll = toll_of(way, self.speed) if way.type <= self.limit else None
        self[at] = toll
        return toll


NOTHING = Toll(0, ())  # where a channel begins that no net brings in


# Every walk over a host asks for the same ways at few speeds.
@lru_cache(maxsize=2**15)
def toll_of(way: Way, speed: int) -> Toll:
    """What a way takes of its links at a speed in MB/s, of each a whole number."""
    costs = zip(way.links, way.cost, strict=True)
    return Toll(
        way.hops, tuple((at, speed * cost, round(speed * cost)) for at, cost in costs)
    )
