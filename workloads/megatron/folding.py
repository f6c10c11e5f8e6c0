"""Which replicas of a Megatron run are alike: one of each kind is simulated and stands for the others.

Ranks that exchange something in every layer (tensor, context and expert parallelism) go at the speed of the slowest of
them: such a team is one simulated rank in each stage. Teams that lie behind each other along the pipeline are a block;
blocks meet once a step, when gradients are reduced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from prestep.workloads.lowered import Unlike
from prestep.workloads.megatron.grid import Grid


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
    odd: tuple[frozenset[Hashable], ...]
    pacers: tuple[int, ...]

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
            _pacer(_team(grid, blocks[0], stage), unlike.slowness or {}) if odd else -1
            for stage, odd in enumerate(unusual)
        ),
    )


def _team(grid: Grid, block: int, stage: int) -> Sequence[int]:
    """Ranks of a block that exchange something in every layer of a stage; the simulated one first."""
    return [
        grid.rank(d, stage, t, c)
        for d in grid.teams[block]
        for c in range(grid.cp)
        for t in range(grid.tp)
    ]


def _pacer(team: Sequence[int], slowness: Mapping[int, float]) -> int:
    """The slowest of a team: the first of those as slow."""
    return max(team, key=lambda rank: slowness.get(rank, 1.0))
