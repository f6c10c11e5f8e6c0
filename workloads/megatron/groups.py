"""Process groups of a Megatron run's simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prestep.workloads.exchanges.context import ROLES, Context, groups
from prestep.workloads.job import JobSpec
from prestep.workloads.lowered import Ints, Place
from prestep.workloads.megatron.folding import Grid, Kind
from prestep.workloads.megatron.shard import Spread, busiest
from prestep.workloads.parallel.group import Group
from prestep.workloads.routing import layers_of

# Axes of the experts' grid by the name of the group; "edp" are an expert's copies.
EXPERT_AXES = {"etp": "tp", "ep": "ep", "edp": "dp"}
# Axes whose collectives count as another's.
COUNTED_AS = {"etp": "tp", "heads": "cp", "ring": "cp"}


class Groups:
    """Process groups of the simulated ranks, each with the copies that it meets."""

    def __init__(self, grid: Grid, place: Place, kinds: Sequence[Kind] = ()) -> None:
        self.grid, self.place, self.kinds = grid, place, kinds
        self._by_axis: dict[tuple[str, int], Ints] = {}

    def of(self, axis: str, stage: int, replica: int = 0) -> Group:
        """The group of an axis that the first rank of a stage and replica is in: tp, cp, dp (with cp, for gradients).

        "heads" and "ring" are groups of the ranks along cp.

        Groups over all replicas have an arrival for each kind of them; others stand for the copies of their own kind.
        """
        me = self.grid.rank(replica, stage, 0)
        everywhere = axis in ("dp", "edp")
        groups = self._all(axis, stage)
        mine = tuple(groups[np.flatnonzero((groups == me).any(axis=1))[0]].tolist())
        if not everywhere:
            groups = self._of_kind(groups, replica)
        arrivals = max(1, len(self.kinds)) if everywhere else 1
        name = COUNTED_AS.get(axis, axis)
        beside = self._beside(groups, mine)
        return Group(name, mine, beside, arrivals, axis, len(groups))

    def _replicas(self, replica: int) -> int:
        """Replicas of a replica's kind."""
        kinds = (kind for kind in self.kinds if replica in kind.members)
        return next((len(kind.replicas) for kind in kinds), self.grid.dp)

    def _of_kind(self, groups: Ints, replica: int) -> Ints:
        """Groups of the replicas that are of a replica's kind."""
        if len(self.kinds) <= 1:
            return groups
        kind = next(kind for kind in self.kinds if replica in kind.members)
        return groups[np.isin(self.grid.replicas(groups[:, 0]), [*kind.members])]

    def team(self, stage: int, replica: int) -> list[Group]:
        """The groups that exchange something in every layer."""
        cp, ring = self.grid.cp, self.grid.ring_degree
        axes = (
            "tp",
            "cp",
            *(("heads", "ring") if 1 < ring < cp else ()),
            *(("ep", "etp") if self.grid.ep * self.grid.etp > 1 else ()),
        )
        return [self.of(axis, stage, replica) for axis in axes]

    def _all(self, axis: str, stage: int) -> Ints:
        """All groups of an axis in a stage, a line each, made once."""
        key = axis, stage
        if key not in self._by_axis:
            self._by_axis[key] = self._made(axis, stage)
        return self._by_axis[key]

    def _made(self, axis: str, stage: int) -> Ints:
        g = self.grid
        if axis in EXPERT_AXES:
            return g.experts(EXPERT_AXES[axis], stage)
        if axis == "tp":
            return g.all_along(stage, ("dp", "cp"), ("tp",))
        if axis in ROLES:
            parts = np.array(groups(axis, range(g.cp), g.ring_degree))
            shared = g.all_along(stage, ("dp", "tp"), ("cp",))
            return shared[:, parts].reshape(-1, parts.shape[1])
        return np.sort(g.all_along(stage, ("tp",), ("dp", "cp")), axis=1)

    def _beside(self, groups: Ints, mine: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Copies that meet a group on links, itself first."""
        near = groups if self.place.blocking else groups[self.place.near(groups, mine)]
        others = (group for group in map(tuple, near.tolist()) if group != mine)
        return [mine, *others]

    def context(self, stage: int, replica: int) -> Context | None:
        """The ranks that share sequences with the first rank of a stage and replica; None: it has whole ones."""
        if self.grid.cp == 1:
            return None
        degree = self.grid.ring_degree
        return Context.of(lambda role: self.of(role, stage, replica), degree)

    def spread(
        self, scenario: JobSpec, experts: int, stage: int = 0, replica: int = 0
    ) -> Spread:
        """How experts lie over the ranks of a stage."""
        p, o = scenario.parallel, scenario.megatron
        group = self.of("ep", stage, replica)
        tensor = self.of("etp", stage, replica) if self.grid.etp > 1 else None
        said = "uniform" if o.moe_force_load_balancing else p.imbalance
        layers = tuple(
            busiest(loads, p.ep, o.moe_capacity, o.moe_pad_to_capacity)
            for loads in layers_of(said, experts)
        )
        hosts = self.place.domains(group.ranks)
        several = layers if len(layers) > 1 else ()
        in_turn = p.routing == "consecutive"
        return Spread(group, tensor, layers[0], hosts, several, in_turn)

    def model_parallel(self, replica: int) -> Group:
        """Tensor- and pipeline-parallel ranks of one replica, who agree on the gradient's norm."""
        g = self.grid
        ranks = (g.rank(replica, p, t) for p in range(g.pp) for t in range(g.tp))
        mine = tuple(sorted(ranks))
        return Group(
            "mp", mine, [mine], g.pp, everywhere=self._replicas(replica) * g.cp
        )

    def itself(self, stage: int, kind: Kind) -> Group:
        """A rank of a stage alone, with all that do the same beside it."""
        alike = [(rank,) for rank in self.grid.ranks(kind.replicas, stage)]
        mine = alike[0]
        beside = self.place.beside(alike, mine)
        others = [one for one in beside if one != mine]
        return Group("offload", mine, [mine, *others], 1, everywhere=len(alike))

    def ends(self, kind: Kind) -> Group:
        """First and last stage, who share the embedding."""
        stages = (self.grid.ranks(kind.replicas, p) for p in (0, self.grid.pp - 1))
        pairs = list(zip(*stages, strict=True))
        beside = self.place.beside(pairs, pairs[0])
        return Group("embedding", pairs[0], beside, 2, everywhere=len(pairs))

    def transfer_copies(self, source: int, target: int, kind: Kind) -> list[int]:
        """Rank offsets of the copies, of the same kind, of a transfer between stages that it meets."""
        _, stage, _ = self.grid.where(source)
        others = [
            rank - source
            for rank in sorted(self._senders(source, target, stage))
            if rank != source and self._alike(rank, stage, kind)
        ]
        return [0, *others]

    def _senders(self, source: int, target: int, stage: int) -> set[int]:
        """Ranks whose transfer can use the links of this one: on unblocked fabrics those on the hosts of its ends."""
        if self.place.blocking:
            return set(self.grid.stage(stage))
        per_host = self.place.gpus_per_host
        senders: set[int] = set()
        for end in (source, target):
            first = end // per_host * per_host
            offset = source - end
            senders.update(range(first + offset, first + offset + per_host))
        return senders

    def _alike(self, rank: int, stage: int, kind: Kind) -> bool:
        """Whether a rank is of a stage, in a replica of a kind."""
        if not 0 <= rank < self.grid.world:
            return False
        d, p, _ = self.grid.where(rank)
        return p == stage and d in kind.members
