"""Where the ranks of a run lie, and which replicas are alike: one of each kind is simulated and stands for the others.

Ranks that exchange something in every layer (tensor, context and expert parallelism) go at the speed of the slowest of
them: such a team is one simulated rank in each stage. Teams that lie behind each other along the pipeline are a block;
blocks meet once a step, when gradients are reduced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import axis_order
from prestep.workloads.lowered import Ints, Layout, Unlike, strides_of


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

    def ranks(self, replicas: Iterable[int], p: int) -> list[int]:
        """Ranks of a stage in some replicas, those of a tensor-parallel group beside each other."""
        parts = [self.rank(0, p, t, c) for c in range(self.cp) for t in range(self.tp)]
        firsts = self._strides["dp"] * np.array([*replicas], dtype=np.int64)
        ranks: list[int] = np.add.outer(firsts, parts).ravel().tolist()
        return ranks

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

    def all_along(self, p: int, across: Sequence[str], along: Sequence[str]) -> Ints:
        """Ranks of a stage, a line for each place along the axes ``across``; in it those along the others.

        Of several axes the first is the outermost.
        """
        lines, columns = (
            [sum(place) for place in product(*map(self._along, axes))]
            for axes in (across, along)
        )
        return self.rank(0, p, 0) + np.add.outer(lines, columns)

    def replicas(self, ranks: Ints) -> Ints:
        """The replica that each of some ranks is in."""
        return ranks // self._strides["dp"] % self.dp

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.tp * self.cp

    @cached_property
    def expert_degrees(self) -> dict[str, int]:
        """Ranks along each axis as layers with experts see them; dp: copies of an expert."""
        copies = self.dp * self.cp * self.tp // (self.ep * self.etp)
        return {"tp": self.etp, "ep": self.ep, "dp": copies, "pp": self.pp}

    def experts(self, axis: str, p: int) -> Ints:
        """Groups of a stage along an axis of the experts' grid (tp, ep or dp), in the order of their first ranks.

        A line each.
        """
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
        steps = strides[axis] * np.arange(degrees[axis])
        return np.array(self.stage(p))[np.add.outer(firsts, steps)]

    @cached_property
    def teams(self) -> tuple[tuple[int, ...], ...]:
        """Replicas that go together through every layer: those whose ranks share experts."""
        if self.ep == 1:
            return tuple((d,) for d in range(self.dp))
        groups = (
            *self.experts("ep", 0).tolist(),
            *self.experts("tp", 0).tolist(),
        )
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
    """Where the ranks of a run lie."""
    p = scenario.parallel
    etp = p.tp if p.etp is None else p.etp
    order = axis_order(scenario)
    return Grid(p.dp, p.pp, p.tp, order, p.cp, p.ep, etp, p.rings)


@dataclass(frozen=True)
class Kind:
    """Blocks that do the same.

    Attributes
    ----------
    replicas : tuple of int
        Data-parallel indices of all its ranks; the first is simulated.
    odd : tuple of frozenset
        By stage: the unusual marks among a team's ranks.
    pacers : tuple of int
        By stage: the rank whose speed the team has, the slowest of it; -1: all are as usual.
    """

    replicas: tuple[int, ...]
    odd: tuple[frozenset[Hashable], ...] = ()
    pacers: tuple[int, ...] = ()

    @cached_property
    def members(self) -> frozenset[int]:
        """The replicas as a set."""
        return frozenset(self.replicas)


def kinds_of(grid: Grid, unlike: Unlike, apart: bool = False) -> list[Kind]:
    """Kinds of blocks, in the order of their first; ``apart``: every block is of a kind of its own."""
    odd = _odd_marks(unlike)
    teams = _odd_teams(grid, odd)
    alike: dict[Hashable, list[int]] = {}
    for block in range(len(grid.teams)):
        marks = tuple(
            frozenset(odd[rank] for rank in teams.get((block, stage), ()))
            for stage in range(grid.pp)
        )
        alike.setdefault((marks, block) if apart else marks, []).append(block)
    return [_kind(grid, unlike, blocks, teams) for blocks in alike.values()]


def _odd_marks(unlike: Unlike) -> dict[int, Hashable]:
    """Marks of the ranks that differ from most."""
    if not unlike.marks:
        return {}
    usual = Counter(unlike.marks).most_common(1)[0][0]
    return {rank: mark for rank, mark in enumerate(unlike.marks) if mark != usual}


def _odd_teams(grid: Grid, odd: Iterable[int]) -> dict[tuple[int, int], list[int]]:
    """The odd ranks by their team: (block, stage)."""
    block_of = {d: block for block, ds in enumerate(grid.teams) for d in ds}
    teams: dict[tuple[int, int], list[int]] = {}
    for rank in odd:
        d, stage, _ = grid.where(rank)
        teams.setdefault((block_of[d], stage), []).append(rank)
    return teams


def _kind(
    grid: Grid,
    unlike: Unlike,
    blocks: Sequence[int],
    teams: Mapping[tuple[int, int], list[int]],
) -> Kind:
    """The kind of blocks that are alike; the first says how."""
    unusual = [teams.get((blocks[0], stage), []) for stage in range(grid.pp)]
    return Kind(
        replicas=tuple(d for block in blocks for d in grid.teams[block]),
        odd=tuple(frozenset(unlike.marks[r] for r in ranks) for ranks in unusual),
        pacers=tuple(
            _pacer(grid.ranks(grid.teams[blocks[0]], stage), unlike.slowness or {})
            if odd
            else -1
            for stage, odd in enumerate(unusual)
        ),
    )


def _pacer(team: Sequence[int], slowness: Mapping[int, float]) -> int:
    """The slowest of a team: the first of those as slow."""
    return max(team, key=lambda rank: slowness.get(rank, 1.0))
