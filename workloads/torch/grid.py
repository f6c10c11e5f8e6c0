"""Where the ranks of a PyTorch run lie: parts of a sequence are neighbours, as in torchtitan's mesh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import axis_order
from prestep.workloads.lowered import Layout, strides_of

AXES = ("tp", "cp", "pp", "dp")


@dataclass(frozen=True)
class Grid(Layout):
    """Ranks as a grid of dp x pp x tp; `dp` counts all with the same parameters, `cp` neighbours share samples.

    Attributes
    ----------
    order : tuple of str
        Axes from the innermost outwards.
    cp : int
        Ranks over which a sequence is spread; it divides `dp`.
    """

    order: tuple[str, ...] = AXES
    cp: int = 1

    @cached_property
    def _strides(self) -> dict[str, int]:
        degrees = {
            "dp": self.dp // self.cp,
            "cp": self.cp,
            "pp": self.pp,
            "tp": self.tp,
        }
        return strides_of(self.order, degrees)

    def rank(self, d: int, p: int, t: int) -> int:
        strides, (replica, part) = self._strides, divmod(d, self.cp)
        first = replica * strides["dp"] + part * strides["cp"]
        return first + p * strides["pp"] + t * strides["tp"]

    def where(self, rank: int) -> tuple[int, int, int]:
        strides = self._strides
        replica = rank // strides["dp"] % (self.dp // self.cp)
        part = rank // strides["cp"] % self.cp
        p, t = (rank // strides[axis] % getattr(self, axis) for axis in ("pp", "tp"))
        return replica * self.cp + part, p, t


def grid_of(job: JobSpec) -> Grid:
    """Where the ranks of a job lie."""
    p = job.parallel
    order = tuple(axis for axis in axis_order(job) if axis in AXES)
    return Grid(p.dp * p.cp, p.pp, p.tp, order, p.cp)
