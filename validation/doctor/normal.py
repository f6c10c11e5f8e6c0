"""What is normal: how many standard deviations a part of a sweep may lie above its prediction.

The spreads are those that `prestep collective` states for machines that no constant was fitted to. How many of them a
good machine needs was read off half of the published machines (`normal.toml`); the other half judges.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from prestep.sim import schema
from prestep.sim.costs.spreads import quantile
from prestep.sim.schema import Number, Table
from prestep.validation.doctor.sweep import BANDWIDTH, LARGE, LATENCY, Size, Sweep

FILE = Path(__file__).parent / "normal.toml"
PLACES = ("host", "network", "network, pairs", "shaped")
# One or two sizes may be those where NCCL changes its protocol elsewhere than predicted: they have to be off by more.
FEWEST, SHORT = 3, 3.0
#: Bytes from which on NCCL runs Simple everywhere. Of 182 such sizes of the published machines that judge, each taken
#: alone, one is beyond its limit (0.5 %).
SETTLED = 2**24
_PART = Table({name: Number(above=True) for name in (LATENCY, BANDWIDTH, LARGE)})


@dataclass(frozen=True)
class Part:
    """The sizes of a sweep that one thing bounds: their middle excess, and what a good machine stays below."""

    place: str
    name: str
    sizes: tuple[Size, ...]
    hosts: int | None = None

    @property
    def excess(self) -> float:
        """Middle over the sizes, standard deviations."""
        return statistics.median(size.excess for size in self.sizes)

    @property
    def limit(self) -> float:
        """Standard deviations that the part of a good machine stays below."""
        unsettled = all(0 < size.size < SETTLED for size in self.sizes)
        few = len(self.sizes) < FEWEST and unsettled
        return limit(self.place, self.name) * (SHORT if few else 1.0)

    @property
    def ratio(self) -> float:
        """Measured over predicted time, middle over the sizes."""
        return statistics.median(one.measured / one.expected.time for one in self.sizes)

    @property
    def range(self) -> tuple[float, float]:
        """Between which ratios good machines lie."""
        spread = statistics.median(size.expected.spread for size in self.sizes)
        factor = math.exp(self.limit * spread)
        return 1.0 / factor, factor

    @property
    def abnormal(self) -> bool:
        return self.excess > self.limit


def parts_of(sweep: Sweep) -> tuple[Part, ...]:
    """A sweep by what bounds its sizes."""
    parts: dict[tuple[str, str], list[Size]] = {}
    for size in sweep.sizes:
        parts.setdefault((size.expected.place, size.expected.part), []).append(size)
    return tuple(
        Part(*key, tuple(sizes), sweep.row.hosts) for key, sizes in parts.items()
    )


def interval(size: Size) -> tuple[float, float]:
    """Seconds between which a good machine takes for a size."""
    expected = size.expected
    factor = math.exp(limit(expected.place, expected.part) * expected.spread)
    return expected.time / factor, expected.time * factor


def slow(size: Size) -> bool:
    """Whether a size takes longer than on a good machine."""
    return size.measured > interval(size)[1]


def limit(place: str, part: str) -> float:
    """Standard deviations that a part of a good machine's sweep stays below.

    Nine in ten times do at least; large sizes on few hosts are closer together than the spread of all sizes says.
    """
    known = float(limits().get(place, {}).get(part, 0.0))
    return known if part == LARGE else max(quantile(), known)


@lru_cache(maxsize=1)
def limits() -> Mapping[str, Mapping[str, float]]:
    """The table of `normal.toml`.

    Raises
    ------
    InputError
        With every mistake in it.
    """
    table: dict[str, Any] = schema.read(
        FILE, Table(dict.fromkeys(PLACES, _PART)), "the limits of `prestep doctor nccl`"
    )
    return table
