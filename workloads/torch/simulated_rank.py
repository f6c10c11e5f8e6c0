"""Where the ranks of a PyTorch run lie, and one that is simulated: its groups, and the ranks that it stands for.

Parts of a sequence are neighbours, as in torchtitan's mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
Seat = tuple[int, int]  # of a stage's rank: its replica, and its shard


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
        return self._across("dp", [range(self.layout.dp)], len(self.replicas))

    def shards(self, size: int) -> Group:
        """The ranks that hold the other shards of one copy of its parameters: `size` neighbours among the replicas."""
        if size == self.layout.dp:
            return self.data_parallel()
        return self._across("dp", self._neighbours(size))

    def itself(self) -> Group:
        """This rank, with those that it stands for: what it does by itself, they do beside it."""
        return self._across("offload", [range(d, d + 1) for d in self.alike])

    def copies(self, size: int) -> Group | None:
        """The ranks that hold the same shard where `size` ranks hold a copy; None: there is one copy."""
        ranks = self.layout.dp
        if size == ranks:
            return None
        return self._across("replicas", [range(d, ranks, size) for d in range(size)])

    def tensor_parallel(self) -> Group:
        """The ranks that hold the other shards of its layers."""
        shards = range(self.layout.tp)
        return self._of("tp", ([(d, t) for t in shards] for d in self.alike))

    def context_parallel(self, role: str, ring_degree: int) -> Group:
        """The ranks that have the other parts of its samples, neighbours among the replicas: those of a role."""
        parts = (
            part
            for sample in self._neighbours(self.layout.cp)
            for part in context.groups(role, sample, ring_degree)
        )
        return replace(self._across("cp", parts), role="" if role == "cp" else role)

    def expert_parallel(self, size: int, whole: bool = False) -> Group:
        """The ranks that hold the other experts: `size` neighbours on the data-parallel axis.

        `whole`: each tensor-parallel rank has experts of its own, and they are the nearest neighbours.
        """
        if whole:
            return self._of("ep", self._blocks(size))
        return self._across("ep", self._neighbours(size))

    def expert_copies(self, size: int, among: int, whole: bool = False) -> Group:
        """The ranks that hold the same experts, of the `among` neighbours; `size` ranks hold all of them."""
        if whole:
            blocks = self._blocks(among * self.layout.tp)
            return self._of("edp", (b[i::size] for b in blocks for i in range(size)))
        parts = (n[i::size] for n in self._neighbours(among) for i in range(size))
        return self._across("edp", parts)

    def _neighbours(self, size: int) -> list[range]:
        """So many neighbours among the replicas at a time."""
        return [range(d, d + size) for d in range(0, self.layout.dp, size)]

    def _blocks(self, size: int) -> list[list[Seat]]:
        """So many neighbours of a stage's ranks, those of a tensor-parallel group beside each other."""
        seats = [
            divmod(at, self.layout.tp) for at in range(self.layout.dp * self.layout.tp)
        ]
        return [seats[at : at + size] for at in range(0, len(seats), size)]

    def _across(
        self, axis: str, parts: Iterable[Sequence[int]], arrivals: int = 1
    ) -> Group:
        """The group of its own shard, of groups of replicas."""
        shards = range(self.layout.tp)
        seats = ([(d, t) for d in part] for part in parts for t in shards)
        return self._of(axis, seats, arrivals)

    def _of(
        self, axis: str, groups: Iterable[Sequence[Seat]], arrivals: int = 1
    ) -> Group:
        """The one of a stage's groups that this rank is in; the others are its copies where it stands for them."""
        rank, stage = self.layout.rank, self.stage
        every = [tuple(rank(d, stage, t) for d, t in group) for group in groups]
        mine = next(ranks for ranks in every if self.number in ranks)
        if not self.replicas:
            return Group(axis, mine, [mine], len(mine))
        return Group(axis, mine, sorted(every), arrivals)

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
