"""Process groups of a run's simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prestep.sim.extras import lazily
from prestep.workloads.lowered import Ints, Place
from prestep.workloads.parallel.folding import Grid, Kind
from prestep.workloads.parallel.group import Group

with lazily():
    from prestep.workloads.exchanges import context as contexts

# Axes of the experts' grid by the name of the group; "edp" are an expert's copies.
EXPERT_AXES = {"etp": "tp", "ep": "ep", "edp": "dp"}
# Axes whose collectives count as another's.
COUNTED_AS = {"etp": "tp", "heads": "cp", "ring": "cp"}
#: Ranks up to which a transfer meets the copies of all replicas on links above the hosts: 16,384 take 25 s, not 2.
LISTED = 4096


class Groups:
    """Process groups of the simulated ranks, each with the copies that it meets.

    ``kinds``: replicas that do the same, of which one is simulated; none: all do. ``apart``: every rank is simulated.
    """

    def __init__(
        self,
        grid: Grid,
        place: Place,
        kinds: Sequence[Kind] = (),
        apart: bool = False,
    ) -> None:
        self.grid, self.place, self.apart = grid, place, apart
        self.kinds = kinds or [Kind(tuple(range(grid.dp)))]
        self._by_axis: dict[tuple[str, int], Ints] = {}

    def of(self, axis: str, stage: int, replica: int = 0) -> Group:
        """The group of an axis that the first rank of a stage and replica is in: see `around`."""
        return self.around(axis, self.grid.rank(replica, stage, 0))

    def around(self, axis: str, me: int) -> Group:
        """The group of an axis that a rank is in: tp, cp, dp (with cp, for gradients).

        "heads" and "ring" are groups of the ranks along cp.

        Groups over all replicas have an arrival for each kind of them; others stand for the copies of their own kind.
        """
        return self._group(axis, axis, self._all(axis, self._stage(me)), me)

    def cut(self, whole: Group, shards: int, me: int) -> tuple[Group, Group | None]:
        """A rank's group over all replicas in parts of so many: its own part, and ranks with its place in the others.

        The former share one copy of the parameters, the latter hold the same shard (HSDP); None: it is whole.
        """
        if shards >= whole.size:
            return whole, None
        axis, lines = whole.role, self._all(whole.role, self._stage(me))
        parts = lines.reshape(len(lines), -1, shards)
        between = parts.swapaxes(1, 2).reshape(-1, parts.shape[1])
        own = self._group(axis, axis, parts.reshape(-1, shards), me)
        return own, self._group("replicas", axis, between, me)

    def _group(self, name: str, axis: str, groups: Ints, me: int) -> Group:
        """The one of some groups that a rank is in."""
        mine = tuple(groups[np.flatnonzero((groups == me).any(axis=1))[0]].tolist())
        if self.apart:
            return Group(COUNTED_AS.get(name, name), mine, [mine], len(mine), axis)
        everywhere = axis in ("dp", "edp")
        if not everywhere:
            groups = self._of_kind(groups, me)
        arrivals = len(self.kinds) if everywhere else 1
        beside = self._beside(groups, mine)
        name = COUNTED_AS.get(name, name)
        return Group(name, mine, beside, arrivals, axis, len(groups))

    def _stage(self, me: int) -> int:
        return self.grid.where(me)[1]

    def kind_of(self, me: int) -> Kind:
        """The replicas that do the same as that of a rank, with it."""
        replica, _, _ = self.grid.where(me)
        return next(kind for kind in self.kinds if replica in kind.members)

    def alike(self, me: int) -> list[int]:
        """Ranks that a simulated one stands for, itself first."""
        if self.apart:
            return [me]
        return self.grid.ranks(self.kind_of(me).replicas, self._stage(me))

    def _of_kind(self, groups: Ints, me: int) -> Ints:
        """Groups of the replicas that are of the kind of a rank's."""
        if len(self.kinds) <= 1:
            return groups
        members = [*self.kind_of(me).members]
        return groups[np.isin(self.grid.replicas(groups[:, 0]), members)]

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
        if axis == "dp":
            return np.sort(g.all_along(stage, ("tp",), ("dp", "cp")), axis=1)
        parts = np.array(contexts.groups(axis, range(g.cp), g.ring_degree))
        shared = g.all_along(stage, ("dp", "tp"), ("cp",))
        return shared[:, parts].reshape(-1, parts.shape[1])

    def _beside(self, groups: Ints, mine: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Copies that meet a group on links, itself first."""
        near = map(tuple, self.place.beside(groups, mine).tolist())
        return [mine, *(group for group in near if group != mine)]

    def context(self, me: int) -> contexts.Context | None:
        """The ranks that share sequences with a rank; None: it has whole ones."""
        if self.grid.cp == 1:
            return None
        return contexts.Context.of(
            lambda role: self.around(role, me), self.grid.ring_degree
        )

    def model_parallel(self, me: int) -> Group:
        """Tensor- and pipeline-parallel ranks of a rank's replica, who agree on the gradient's norm."""
        g, (replica, _, _) = self.grid, self.grid.where(me)
        ranks = (g.rank(replica, p, t) for p in range(g.pp) for t in range(g.tp))
        mine = tuple(sorted(ranks))
        everywhere = len(self.kind_of(me).replicas) * g.cp
        return Group("mp", mine, [mine], g.pp, everywhere=everywhere)

    def itself(self, me: int) -> Group:
        """A rank alone, with all that do the same beside it."""
        alike = np.array(self.alike(me))[:, None]
        beside = self._beside(alike, (me,))
        return Group("offload", (me,), beside, 1, everywhere=len(alike))

    def ends(self, me: int) -> Group:
        """First and last stage of a rank's pipeline, who share the embedding."""
        replicas = self.kind_of(me).replicas
        stages = (self.grid.ranks(replicas, p) for p in (0, self.grid.pp - 1))
        pairs = np.array(list(zip(*stages, strict=True)))
        first = int(pairs[0, 0]), int(pairs[0, 1])
        beside = self._beside(pairs, first)
        return Group("embedding", first, beside, 2, everywhere=len(pairs))

    def transfer_copies(self, source: int, target: int) -> list[int]:
        """Rank offsets of the copies, of the same kind, of a transfer between stages that it meets."""
        if self.apart:
            return [0]
        alike = {*self.alike(source), source}
        others = sorted(alike & self._senders(source, target) - {source})
        return [0, *(rank - source for rank in others)]

    def _senders(self, source: int, target: int) -> set[int]:
        """Ranks whose transfer can use the links of this one: on unblocked fabrics those on the hosts of its ends."""
        ends = self.place.hosts_of([source, target])
        narrow = self.place.blocking and self.grid.world <= LISTED
        if narrow and ends[0] != ends[1]:
            return set(self.grid.stage(self._stage(source)))
        near = (self.place.neighbours(end) + source - end for end in (source, target))
        return {rank for ranks in near for rank in ranks.tolist()}
