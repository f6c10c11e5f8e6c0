"""Process groups of a Megatron run's simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.job import Job
from workloads.lowered import Place
from workloads.megatron.folding import Kind
from workloads.megatron.grid import Grid
from workloads.megatron.spread import Spread, busiest, loads_of
from workloads.parallel.group import Group

# Axes of the experts' grid by the name of the group; "edp" are an expert's copies.
EXPERT_AXES = {"etp": "tp", "ep": "ep", "edp": "dp"}


class Groups:
    """Process groups of the simulated ranks, each with the copies that it meets."""

    def __init__(self, grid: Grid, place: Place, kinds: int = 1) -> None:
        self.grid, self.place, self.kinds = grid, place, kinds

    def of(self, axis: str, stage: int, replica: int = 0) -> Group:
        """The group of an axis that the first rank of a stage and replica is in: tp, cp, dp (with cp, for gradients).

        Groups over all replicas have an arrival for each kind of them.
        """
        me = self.grid.rank(replica, stage, 0)
        groups = self._all(axis, stage)
        mine = next(group for group in groups if me in group)
        arrivals = self.kinds if axis in ("dp", "edp") else 1
        name = "tp" if axis == "etp" else axis
        return Group(name, mine, self._beside(groups, mine), arrivals)

    def _all(self, axis: str, stage: int) -> Sequence[tuple[int, ...]]:
        """All groups of an axis in a stage."""
        g = self.grid
        ds, cs, ts = range(g.dp), range(g.cp), range(g.tp)
        if axis == "tp":
            return [tuple(g.rank(d, stage, t, c) for t in ts) for d in ds for c in cs]
        if axis == "cp":
            return [tuple(g.rank(d, stage, t, c) for c in cs) for d in ds for t in ts]
        if axis == "dp":
            replicas = [[g.rank(d, stage, t, c) for d in ds for c in cs] for t in ts]
            return [tuple(sorted(ranks)) for ranks in replicas]
        return g.experts(EXPERT_AXES[axis], stage)

    def _beside(
        self, groups: Sequence[tuple[int, ...]], mine: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        """Copies that meet a group on links, itself first."""
        found = self.place.beside(groups, mine)
        return (
            found
            if found[0] == mine
            else [mine, *(group for group in found if group != mine)]
        )

    def spread(
        self, scenario: Job, experts: int, stage: int = 0, replica: int = 0
    ) -> Spread:
        """How experts lie over the ranks of a stage."""
        p, o, group = (
            scenario.parallel,
            scenario.megatron,
            self.of("ep", stage, replica),
        )
        loads = busiest(
            loads_of(p, experts), p.ep, o.moe_capacity, o.moe_pad_to_capacity
        )
        hosts = len({rank // self.place.gpus_per_host for rank in group.ranks})
        return Spread(
            group,
            self.of("etp", stage, replica) if self.grid.etp > 1 else None,
            loads,
            hosts,
        )

    def model_parallel(self, replica: int) -> Group:
        """Tensor- and pipeline-parallel ranks of one replica, who agree on the gradient's norm."""
        g = self.grid
        mine = tuple(
            sorted(g.rank(replica, p, t) for p in range(g.pp) for t in range(g.tp))
        )
        return Group("mp", mine, [mine], g.pp)

    def ends(self, kind: Kind) -> Group:
        """First and last stage, who share the embedding."""
        g = self.grid
        found = [
            (g.rank(d, 0, t, c), g.rank(d, g.pp - 1, t, c))
            for d in kind.replicas
            for c in range(g.cp)
            for t in range(g.tp)
        ]
        return Group("embedding", found[0], self.place.beside(found, found[0]), 2)

    def transfer_copies(self, source: int, target: int, kind: Kind) -> list[int]:
        """Rank offsets of the copies, of the same kind, of a transfer between stages that it meets."""
        g = self.grid
        _, stage, _ = g.where(source)
        if self.place.blocking:
            ranks = set(g.stage(stage))
        else:  # only ranks on the hosts of the two can be on links that they use
            near = self.place.gpus_per_host
            hosts = [(rank, rank // near * near) for rank in (source, target)]
            ranks = {
                source + first + i - rank for rank, first in hosts for i in range(near)
            }
        return [
            0,
            *(
                rank - source
                for rank in sorted(ranks)
                if rank != source and self._alike(rank, stage, kind)
            ),
        ]

    def _alike(self, rank: int, stage: int, kind: Kind) -> bool:
        """Whether a rank is of a stage, in a replica of a kind."""
        if not 0 <= rank < self.grid.world:
            return False
        d, p, _ = self.grid.where(rank)
        return p == stage and d in kind.members
