"""Numbers that say where they come from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real

# Best first. A result says how much of its time rests on each.
GRADES = ("measured", "fitted", "datasheet", "guess")
# Source of a link's rate that somebody changed in a graph.
EDITED = "edited in the graph"


@dataclass(frozen=True)
class Quantity:
    """A number with its evidence grade and its source.

    `value` is in SI units (bytes/s, s) or a count; `evidence` is one of `GRADES`; `source` names a
    document or a measurement.
    """

    value: float
    evidence: str
    source: str


@dataclass(frozen=True)
class LinkSpec:
    """What one physical link can do.

    Attributes
    ----------
    bandwidth
        Payload bytes/s in one direction: what a large copy gets, headers taken off. Counted from the CPU towards the
        device, and in both directions unless `upstream` is given.
    latency
        Seconds from one end to the other, without any software.
    raw
        Bytes/s on the wire in one direction, as the datasheet gives it; None: as fast as the payload of either.
    upstream
        Payload bytes/s towards the CPU where it differs (a disk's reads, for instance).
    """

    bandwidth: Quantity
    latency: Quantity
    raw: Quantity | None = None
    upstream: Quantity | None = None

    @property
    def wire(self) -> float:
        """Bytes/s on the wire in either direction: never slower than the payload."""
        if self.raw is not None:
            return self.raw.value
        return max(self.bandwidth.value, (self.upstream or self.bandwidth).value)

    @property
    def reverse(self) -> LinkSpec:
        """The same link seen from its other end."""
        return (
            self
            if self.upstream is None
            else replace(self, bandwidth=self.upstream, upstream=self.bandwidth)
        )


def shown(value: object) -> str:
    """How an error shows a value of somebody else's: its beginning, on one line.

    Examples
    --------
    >>> shown(None), shown("fast"), shown([0] * 40)[:9]
    ('nothing', "'fast'", '[0, 0, 0,')
    """
    return "nothing" if value is None else repr(value)[:60]


def number_of(value: object) -> float:
    """A number, or a text that is one; NaN for everything else."""
    if isinstance(value, bool) or not isinstance(value, Real | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
