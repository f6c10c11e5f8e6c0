"""Where the ranks of a Megatron run lie, and which of them share experts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import axis_order
from prestep.workloads.lowered import Layout, strides_of


@dataclass(frozen=True)
class Grid(Layout):
    """Ranks as a grid of dp x cp x tp in every stage; `order` has ep too, which lies inside of the first three.

    Layers with experts see the ranks of a stage as a grid of their own: etp x ep x the copies of experts, in the same
    order (Megatron's ``RankGenerator``, once for the decoder and once for its experts).
    """

    order: tuple[str, ...] = ("tp", "cp", "ep", "dp", "pp")
    cp: int = 1
    ep: int = 1
    etp: int = 1  # ranks that hold one expert together
    ring_degree: int = (
        1  # ranks along cp whose keys go around; the others exchange heads
    )

    @cached_property
    def _strides(self) -> dict[str, int]:
        return strides_of(
            tuple(axis for axis in self.order if axis != "ep"), vars(self)
        )

    def rank(self, d: int, p: int, t: int, c: int = 0) -> int:
        return super().rank(d, p, t) + c * self._strides["cp"]

    def stage(self, p: int) -> list[int]:
        """Ranks of a pipeline stage, ascending."""
        first = self.rank(0, p, 0)
        return [first + offset for offset in self._members]

    @cached_property
    def _members(self) -> list[int]:
        """Ranks of the first stage, ascending."""
        tensor = self._along("tp")
        return sorted(copy + offset for copy in self._copies for offset in tensor)

    @cached_property
    def _copies(self) -> list[int]:
        """Ranks of the first stage that have the same parameters as rank 0, ascending."""
        context = self._along("cp")
        return sorted(d + c for d in self._along("dp") for c in context)

    def _along(self, axis: str) -> range:
        """Rank 0 and those that differ from it along one axis."""
        stride, degree = self._strides[axis], getattr(self, axis)
        return range(0, stride * degree, stride)

    def tensor_ranks(self, p: int, d: int, c: int) -> tuple[int, ...]:
        """Ranks of a stage that differ in their tensor-parallel index."""
        first = self.rank(d, p, 0, c)
        return tuple(first + offset for offset in self._along("tp"))

    def context_ranks(self, p: int, d: int, t: int) -> tuple[int, ...]:
        """Ranks of a stage that have other parts of the same samples."""
        first = self.rank(d, p, t)
        return tuple(first + offset for offset in self._along("cp"))

    def replica_ranks(self, p: int, t: int) -> tuple[int, ...]:
        """Ranks of a stage that have the same parameters, ascending."""
        first = self.rank(0, p, t)
        return tuple(first + offset for offset in self._copies)

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.tp * self.cp

    @cached_property
    def expert_degrees(self) -> dict[str, int]:
        """Ranks along each axis as layers with experts see them; dp: copies of an expert."""
        copies = self.dp * self.cp * self.tp // (self.ep * self.etp)
        return {"tp": self.etp, "ep": self.ep, "dp": copies, "pp": self.pp}

    def experts(self, axis: str, p: int) -> list[tuple[int, ...]]:
        """Groups of a stage along an axis of the experts' grid (tp, ep or dp), in the order of their first ranks."""
        degrees = {
            name: degree for name, degree in self.expert_degrees.items() if name != "pp"
        }
        strides = strides_of(
            tuple(name for name in self.order if name in degrees), degrees
        )
        across = [
            range(0, strides[name] * degrees[name], strides[name])
            for name in degrees
            if name != axis
        ]
        firsts = sorted(sum(place) for place in product(*across))
        ranks = self.stage(p)
        return [
            tuple(ranks[first + i * strides[axis]] for i in range(degrees[axis]))
            for first in firsts
        ]

    @cached_property
    def teams(self) -> tuple[tuple[int, ...], ...]:
        """Replicas that go together through every layer: those whose ranks share experts."""
        if self.ep == 1:
            return tuple((d,) for d in range(self.dp))
        groups = (*self.experts("ep", 0), *self.experts("tp", 0))
        sharing = ({self.where(rank)[0] for rank in group} for group in groups)
        return _joined(self.dp, sharing)


def _joined(
    members: int, groups: Iterable[Collection[int]]
) -> tuple[tuple[int, ...], ...]:
    """Members from 0 on, in one team where they meet in a group, or others of their teams do; all ascending."""
    team_of = [{member} for member in range(members)]
    for group in groups:
        meeting = {id(team_of[member]): team_of[member] for member in group}
        if len(meeting) > 1:
            team = set().union(*meeting.values())
            for member in team:
                team_of[member] = team
    teams = {id(team): team for team in team_of}
    return tuple(sorted(tuple(sorted(team)) for team in teams.values()))


def grid_of(scenario: JobSpec) -> Grid:
    """Where the ranks of a Megatron run lie."""
    p = scenario.parallel
    etp = p.tp if p.etp is None else p.etp
    order = axis_order(scenario)
    return Grid(p.dp, p.pp, p.tp, order, p.cp, p.ep, etp, p.rings)
