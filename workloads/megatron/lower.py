"""Lowers a Megatron run: one rank of each pipeline stage, its layers as recorded units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from networkx.utils import UnionFind

from sim.costs.frameworks import host_costs
from sim.graph.opgraph import OpGraph
from sim.spec.rules.layout import (
    MEGATRON_ORDER,
    axis_order,
    grad_accumulation_of,
    microbatches_of,
)
from workloads.megatron.folding import Kind, Unlike, kinds_of
from workloads.megatron.pipeline import Issued, in_order, interleaved
from workloads.megatron.spread import Spread, busiest, loads_of
from workloads.megatron.stage import Rank
from workloads.megatron.units import Units
from workloads.parallel.group import Group
from workloads.parallel.pipeline import layers_of_stages
from workloads.schedules import checked, rank_of_stages
from workloads.schedules.runtime import operations
from workloads.torch.lower import Layout, Lowered, strides_of
from workloads.torch.tape import PHASES, Shared, Tape

if TYPE_CHECKING:
    from sim.spec.sections import Scenario
    from workloads.models.model import ModelSpec


@dataclass(frozen=True)
class Grid(Layout):
    """Ranks as a grid of dp x cp x tp in every stage; `order` has ep too, which lies inside of the first three.

    Layers with experts see the ranks of a stage as a grid of their own: etp x ep x the copies of experts, in the same
    order (Megatron's ``RankGenerator``, once for the decoder and once for its experts).
    """

    order: tuple[str, ...] = MEGATRON_ORDER
    cp: int = 1
    ep: int = 1
    etp: int = 1  # ranks that hold one expert together

    @cached_property
    def _strides(self) -> dict[str, int]:
        return strides_of(
            tuple(axis for axis in self.order if axis != "ep"), vars(self)
        )

    def rank(self, d: int, p: int, t: int, c: int = 0) -> int:
        return super().rank(d, p, t) + c * self._strides["cp"]

    def stage(self, p: int) -> list[int]:
        """Ranks of a pipeline stage, ascending."""
        return sorted(
            self.rank(d, p, t, c)
            for d in range(self.dp)
            for c in range(self.cp)
            for t in range(self.tp)
        )

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.tp * self.cp

    @property
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
        teams = UnionFind(range(self.dp))
        if self.ep > 1:
            for group in (*self.experts("ep", 0), *self.experts("tp", 0)):
                teams.union(*{self.where(rank)[0] for rank in group})
        return tuple(sorted(tuple(sorted(team)) for team in teams.to_sets()))


def grid_of(scenario: Scenario) -> Grid:
    """Where the ranks of a Megatron run lie."""
    p = scenario.parallel
    etp = p.tp if p.etp is None else p.etp
    return Grid(p.dp, p.pp, p.tp, axis_order(scenario), cp=p.cp, ep=p.ep, etp=etp)


@dataclass(frozen=True)
class Place:
    """What lowering has to know of the cluster: which copies of a group meet it on links."""

    gpus_per_host: int
    blocking: bool  # links above the hosts are shared by more than they carry

    def beside(
        self, groups: Sequence[tuple[int, ...]], mine: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        """The copies that share hosts with ``mine``; all of them where the fabric blocks."""
        if self.blocking:
            return list(groups)
        hosts = {rank // self.gpus_per_host for rank in mine}
        return [
            g for g in groups if any(rank // self.gpus_per_host in hosts for rank in g)
        ]


def lower(
    scenario: Scenario,
    model: ModelSpec,
    host_factor: float,
    place: Place,
    unlike: Unlike | None = None,
    apart: bool = False,
) -> Lowered:
    """The operation graph of a Megatron step: one rank of each stage for each kind of replica.

    ``apart`` simulates every replica, also those that are alike.
    """
    p = scenario.parallel
    grid = grid_of(scenario)
    # A step that one CUDA graph replays keeps the host free of operators.
    alive = (
        0.0 if "full_iteration" in scenario.megatron.cuda_graph_scope else host_factor
    )
    costs = {
        name: time * alive
        for name, time in host_costs(scenario.training.framework).items()
    }
    unlike = unlike or Unlike()
    kinds = kinds_of(grid, unlike, apart)
    groups = Groups(grid, place, len(kinds))
    models = Models(scenario, model, groups, costs, kinds)
    owner, rows = _schedule(scenario)
    cuts = _cuts(scenario, model.layers, len(owner))
    shared, ranks, represents, pace = Shared(), [], {}, {}
    for kind in kinds:
        for stage in range(p.pp):
            tape = Tape(grid.rank(kind.replicas[0], stage, 0), shared, costs)
            mine = {i: cuts[i] for i, at in enumerate(owner) if at == stage}
            rank = Rank(
                scenario,
                models.of(kind, stage),
                grid,
                groups,
                stage,
                mine,
                owner,
                tape,
                kind,
            )
            rank.record(rows[stage], grad_accumulation_of(scenario) if p.pp > 1 else 1)
            ranks.append(rank)
            represents[tape.rank] = tuple(
                grid.rank(d, stage, t, c)
                for d in kind.replicas
                for c in range(p.cp)
                for t in range(p.tp)
            )
            if kind.pacers[stage] >= 0:
                pace[tape.rank] = kind.pacers[stage]
    graph = OpGraph(
        tuple(r.tape.program() for r in ranks),
        tuple(shared.kernels),
        tuple(shared.rendezvous.comms),
        tuple(shared.streams),
        PHASES,
        represents,
        pace=pace,
    )
    return Lowered(
        graph,
        {r.tape.rank: r.tape.memory for r in ranks},
        {r.tape.rank: r.tape.counts for r in ranks},
        models.usual.whole(model.layers),
        grid,
        (host_factor, tuple(unlike.marks)),
    )


class Models:
    """The model's units where they lie: those of teams that are not like the others are recorded for themselves."""

    def __init__(
        self,
        scenario: Scenario,
        model: ModelSpec,
        groups: Groups,
        costs: dict[str, float],
        kinds: Sequence[Kind],
    ) -> None:
        self.scenario, self.model, self.groups, self.costs = (
            scenario,
            model,
            groups,
            costs,
        )
        places = [
            (stage, k.replicas[0])
            for k in kinds
            for stage, odd in enumerate(k.odd)
            if not odd
        ]
        stage, d = places[0] if places else (0, 0)
        self.usual = self._made(stage, d, groups.grid.rank(d, stage, 0))
        self._odd: dict[object, Units] = {}

    def of(self, kind: Kind, stage: int) -> Units:
        if not kind.odd[stage]:
            return self.usual
        key = kind.odd[stage]
        if key not in self._odd:
            d = kind.replicas[0]
            pacer = (
                kind.pacers[stage]
                if kind.pacers[stage] >= 0
                else self.groups.grid.rank(d, stage, 0)
            )
            self._odd[key] = self._made(stage, d, pacer)
        return self._odd[key]

    def _made(self, stage: int, d: int, rank: int) -> Units:
        groups, s = self.groups, self.scenario
        context = groups.of("cp", stage, d) if s.parallel.cp > 1 else None
        spread = (
            groups.spread(s, self.model.experts, stage, d)
            if self.model.experts
            else None
        )
        tensor = groups.of("tp", stage, d)
        return Units(
            s,
            self.model,
            tensor,
            context,
            lambda: Tape(rank, Shared(), self.costs),
            spread,
        )


def _cuts(scenario: Scenario, layers: int, stages: int) -> list[range]:
    """Layers of each stage; an embedding or a head that counts as a layer takes the place of one at its end."""
    o = scenario.megatron
    first, last = int(o.account_for_embedding), int(o.account_for_loss)
    if stages == 1:
        return layers_of_stages(layers, 1)
    cuts = layers_of_stages(layers + first + last, stages)
    return [
        range(max(0, cut.start - first), max(0, min(layers, cut.stop - first)))
        for cut in cuts
    ]


def _schedule(scenario: Scenario) -> tuple[tuple[int, ...], Sequence[Sequence[Issued]]]:
    """Pipeline rank of every stage, and what each rank issues."""
    p, microbatches = scenario.parallel, microbatches_of(scenario)
    if p.pp == 1:
        from workloads.schedules.runtime import Compute

        return (0,), [
            [Compute(0, kind, i) for i in range(microbatches) for kind in "FB"]
        ]
    microbatches //= grad_accumulation_of(scenario)
    module, chunks = checked(
        p.schedule, p.pp, microbatches, p.vpp if p.vpp > 1 else None, "megatron"
    )
    owner = rank_of_stages(module.PLACEMENT, p.pp, chunks)
    if p.schedule == "1f1b":
        return owner, operations(
            p.schedule, p.pp, microbatches, chunks, framework="megatron"
        )
    if p.schedule != "interleaved":
        return owner, in_order(module, p.pp, microbatches, chunks, owner)
    actions = [module.actions(rank, p.pp, microbatches, chunks) for rank in range(p.pp)]
    overlap = scenario.megatron.overlap_p2p_comm
    return owner, [
        interleaved(rank, row, owner, overlap) for rank, row in enumerate(actions)
    ]


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
        g, me = self.grid, self.grid.rank(replica, stage, 0)
        ds, cs, ts = range(g.dp), range(g.cp), range(g.tp)
        if axis == "tp":
            groups = [tuple(g.rank(d, stage, t, c) for t in ts) for d in ds for c in cs]
        elif axis == "cp":
            groups = [tuple(g.rank(d, stage, t, c) for c in cs) for d in ds for t in ts]
        elif axis == "dp":
            groups = [
                tuple(sorted(g.rank(d, stage, t, c) for d in ds for c in cs))
                for t in ts
            ]
        else:
            groups = g.experts(EXPERT_AXES[axis], stage)
        mine = next(group for group in groups if me in group)
        name = "tp" if axis == "etp" else axis
        return Group(
            name,
            mine,
            self._beside(groups, mine),
            self.kinds if axis in ("dp", "edp") else 1,
        )

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
        self, scenario: Scenario, experts: int, stage: int = 0, replica: int = 0
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
