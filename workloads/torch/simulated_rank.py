"""Where the ranks of a PyTorch run lie, and one that is simulated: its groups, and the ranks that it stands for.

Parts of a sequence are neighbours, as in torchtitan's mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from prestep.sim.extras import lazily
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import axis_order
from prestep.workloads.lowered import Layout, strides_of
from prestep.workloads.parallel.group import Group

with lazily():
    from prestep.workloads.exchanges import context

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


@dataclass(frozen=True)
class SimulatedRank:
    """A rank that is simulated.

    Attributes
    ----------
    layout : Grid
    number : int
        The rank.
    replicas : tuple of tuples
        Data-parallel replicas that do the same, of which the first is simulated with the first of its
        tensor-parallel ranks; empty: every rank is simulated.
    """

    layout: Grid
    number: int
    replicas: tuple[tuple[int, ...], ...]

    @cached_property
    def where(self) -> tuple[int, int, int]:
        """Its place on the data-parallel, pipeline and tensor-parallel axes."""
        return self.layout.where(self.number)

    @property
    def stage(self) -> int:
        """Its place in its pipeline."""
        return self.where[1]

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """Data-parallel replicas that do what its own does, with its own."""
        own = self.where[0]
        return next((same for same in self.replicas if own in same), (own,))

    def data_parallel(self) -> Group:
        """The ranks that hold the same parameters."""
        t, shards = self.where[2], range(self.layout.tp)
        mine = self._replicas_of(t)
        if not self.replicas:
            return Group("dp", mine, [mine], len(mine))
        # The group is the same for every replica: of a thousand replicas one need be asked.
        copies = {self._replicas_of(shard) for shard in shards}
        return Group("dp", mine, sorted(copies), len(self.replicas))

    def shards(self, size: int) -> Group:
        """The ranks that hold the other shards of one copy of its parameters: `size` neighbours among the replicas."""
        if size == self.layout.dp:
            return self.data_parallel()
        own = self.where[0] // size * size
        return self._part("dp", [range(d, d + size) for d in self._every(size)], own)

    def itself(self) -> Group:
        """This rank, with those that it stands for: what it does by itself, they do beside it."""
        alike = [range(d, d + 1) for d in self.alike]
        return self._part("offload", alike, self.where[0])

    def copies(self, size: int) -> Group | None:
        """The ranks that hold the same shard where `size` ranks hold a copy; None: there is one copy."""
        ranks = self.layout.dp
        if size == ranks:
            return None
        parts = [range(d, ranks, size) for d in range(size)]
        return self._part("replicas", parts, self.where[0] % size)

    def _every(self, size: int) -> range:
        return range(0, self.layout.dp, size)

    def _part(self, axis: str, parts: list[range], first: int) -> Group:
        """The one of these groups of replicas that begins with `first`, as this rank's stage and shard have it."""
        _, stage, own = self.where

        def ranks(part: range, shard: int) -> tuple[int, ...]:
            return tuple(self.layout.rank(d, stage, shard) for d in part)

        mine = next(ranks(part, own) for part in parts if part[0] == first)
        if not self.replicas:
            return Group(axis, mine, [mine], len(mine))
        every = [ranks(p, shard) for p in parts for shard in range(self.layout.tp)]
        return Group(axis, mine, sorted(every), 1)

    def tensor_parallel(self) -> Group:
        """The ranks that hold the other shards of its layers."""
        mine = self._shards_of(self.where[0])
        if not self.replicas:
            return Group("tp", mine, [mine], len(mine))
        copies = {self._shards_of(replica) for replica in self.alike}
        return Group("tp", mine, sorted(copies), 1)

    def context_parallel(self, role: str, ring_degree: int) -> Group:
        """The ranks that have the other parts of its samples, neighbours among the replicas: those of a role."""
        size, own = self.layout.cp, self.where[0]
        parts = [
            part
            for first in self._every(size)
            for part in context.groups(role, range(first, first + size), ring_degree)
        ]
        mine = next(part for part in parts if own in part)
        group = self._part("cp", parts, mine[0])
        return replace(group, role="" if role == "cp" else role)

    def expert_parallel(self, size: int, whole: bool = False) -> Group:
        """The ranks that hold the other experts: `size` neighbours on the data-parallel axis.

        `whole`: each tensor-parallel rank has experts of its own, and they are the nearest neighbours.
        """
        if whole:
            return self._place("ep", self._blocks(size))
        parts = [range(d, d + size) for d in self._every(size)]
        return self._part("ep", parts, self.where[0] // size * size)

    def expert_copies(self, size: int, among: int, whole: bool = False) -> Group:
        """The ranks that hold the same experts, of the `among` neighbours; `size` ranks hold all of them."""
        if whole:
            blocks = self._blocks(among * self.layout.tp)
            every = [
                range(each.start + i, each.stop, size)
                for each in blocks
                for i in range(size)
            ]
            return self._place("edp", every)
        parts = [
            range(first + place, first + among, size)
            for first in self._every(among)
            for place in range(size)
        ]
        own = self.where[0]
        return self._part("edp", parts, own // among * among + own % size)

    def _blocks(self, size: int) -> list[range]:
        """So many neighbours of a stage's ranks, those of a tensor-parallel group beside each other."""
        ranks = self.layout.dp * self.layout.tp
        return [range(first, first + size) for first in range(0, ranks, size)]

    def _place(self, axis: str, parts: list[range]) -> Group:
        """The one of these groups of a stage's ranks that this rank is in."""
        replica, stage, shard = self.where
        tp = self.layout.tp

        def ranks(part: range) -> tuple[int, ...]:
            places = (divmod(each, tp) for each in part)
            return tuple(self.layout.rank(d, stage, t) for d, t in places)

        own = replica * tp + shard
        mine = next(ranks(part) for part in parts if own in part)
        if not self.replicas:
            return Group(axis, mine, [mine], len(mine))
        return Group(axis, mine, sorted(map(ranks, parts)), 1)

    def pipeline(self) -> list[int]:
        """The ranks of its pipeline, in the order of the axis."""
        d, _, t = self.where
        return [self.layout.rank(d, p, t) for p in range(self.layout.pp)]

    def pipeline_copies(self) -> list[int]:
        """How far the pipelines that it stands for are from its own, in ranks; 0 is its own."""
        d, _, t = self.where
        if not self.replicas:
            return [0]
        own = self.layout.rank(d, 0, t)
        return [
            self.layout.rank(replica, 0, shard) - own
            for replica in self.alike
            for shard in range(self.layout.tp)
        ]

    def _replicas_of(self, shard: int) -> tuple[int, ...]:
        rank, stage = self.layout.rank, self.stage
        return tuple(rank(d, stage, shard) for d in range(self.layout.dp))

    def _shards_of(self, replica: int) -> tuple[int, ...]:
        rank, stage = self.layout.rank, self.stage
        return tuple(rank(replica, stage, t) for t in range(self.layout.tp))
