"""Lowers a Megatron run: one rank of each pipeline stage, its layers as recorded units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.costs.frameworks import host_costs
from sim.layout import grad_accumulation_of, microbatches_of
from sim.opgraph import OpGraph
from workloads.lower import Layout, Lowered
from workloads.megatron.pipeline import Issued, in_order, interleaved
from workloads.megatron.spread import Spread, busiest, loads_of
from workloads.megatron.stage import Model, Rank
from workloads.parallel.group import Group
from workloads.parallel.pipeline import layers_of_stages
from workloads.schedules import checked, rank_of_stages
from workloads.schedules.runtime import operations
from workloads.tape import PHASES, Shared, Tape

if TYPE_CHECKING:
    from sim.sections import Scenario
    from workloads.model import ModelSpec


@dataclass(frozen=True)
class Grid(Layout):
    """Megatron's order of ranks: tensor parallel innermost, then context, data, and pipeline outermost."""

    cp: int = 1
    ep: int = 1
    etp: int = 1  # ranks that hold one expert together

    def rank(self, d: int, p: int, t: int, c: int = 0) -> int:
        return ((p * self.dp + d) * self.cp + c) * self.tp + t

    def where(self, rank: int) -> tuple[int, int, int]:
        return rank // (self.tp * self.cp) % self.dp, rank // (self.tp * self.cp * self.dp), rank % self.tp

    def pipeline(self, rank: int) -> tuple[int, ...]:
        stride = self.dp * self.cp * self.tp
        return tuple(range(rank % stride, self.world, stride))

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.tp * self.cp


def grid_of(scenario: Scenario) -> Grid:
    """Where the ranks of a Megatron run lie."""
    p = scenario.parallel
    return Grid(p.dp, p.pp, p.tp, cp=p.cp, ep=p.ep, etp=p.tp if p.etp is None else p.etp)


@dataclass(frozen=True)
class Place:
    """What lowering has to know of the cluster: which copies of a group meet it on links."""

    gpus_per_host: int
    blocking: bool  # links above the hosts are shared by more than they carry

    def beside(self, groups: Sequence[tuple[int, ...]], mine: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The copies that share hosts with ``mine``; all of them where the fabric blocks."""
        if self.blocking:
            return list(groups)
        hosts = {rank // self.gpus_per_host for rank in mine}
        return [g for g in groups if any(rank // self.gpus_per_host in hosts for rank in g)]


def lower(scenario: Scenario, model: ModelSpec, host_factor: float, place: Place) -> Lowered:
    """The operation graph of a Megatron step; every data- and tensor-parallel copy is folded into one rank."""
    p = scenario.parallel
    grid = grid_of(scenario)
    costs = {name: time * host_factor for name, time in host_costs("megatron").items()}
    groups = Groups(grid, place)
    context = groups.of("cp", 0) if p.cp > 1 else None
    spread = groups.spread(scenario, model.experts) if model.experts else None
    layers = Model(scenario, model, groups.of("tp", 0), context, lambda: Tape(0, Shared(), costs), spread)
    owner, rows = _schedule(scenario)
    cuts = _cuts(scenario, model.layers, len(owner))
    shared, ranks = Shared(), []
    for stage in range(p.pp):
        tape = Tape(grid.rank(0, stage, 0), shared, costs)
        mine = {i: cuts[i] for i, at in enumerate(owner) if at == stage}
        rank = Rank(scenario, layers, grid, groups, stage, mine, owner, tape)
        rank.record(rows[stage], grad_accumulation_of(scenario) if p.pp > 1 else 1)
        ranks.append(rank)
    represents = {
        r.tape.rank: tuple(grid.rank(d, r.stage, t, c) for d in range(p.dp) for c in range(p.cp) for t in range(p.tp))
        for r in ranks
    }
    graph = OpGraph(
        tuple(r.tape.program() for r in ranks), tuple(shared.kernels), tuple(shared.rendezvous.comms),
        tuple(shared.streams), PHASES, represents,
    )  # fmt: skip
    return Lowered(
        graph,
        {r.tape.rank: r.tape.memory for r in ranks},
        {r.tape.rank: r.tape.counts for r in ranks},
        layers.whole(model.layers),
        grid,
        (host_factor, ()),
    )


def _cuts(scenario: Scenario, layers: int, stages: int) -> list[range]:
    """Layers of each stage; an embedding or a head that counts as a layer takes the place of one at its end."""
    o = scenario.megatron
    first, last = int(o.account_for_embedding), int(o.account_for_loss)
    if stages == 1:
        return layers_of_stages(layers, 1)
    cuts = layers_of_stages(layers + first + last, stages)
    return [range(max(0, cut.start - first), max(0, min(layers, cut.stop - first))) for cut in cuts]


def _schedule(scenario: Scenario) -> tuple[tuple[int, ...], Sequence[Sequence[Issued]]]:
    """Pipeline rank of every stage, and what each rank issues."""
    p, microbatches = scenario.parallel, microbatches_of(scenario)
    if p.pp == 1:
        from workloads.schedules.runtime import Compute

        return (0,), [[Compute(0, kind, i) for i in range(microbatches) for kind in "FB"]]
    microbatches //= grad_accumulation_of(scenario)
    module, chunks = checked(p.schedule, p.pp, microbatches, p.vpp if p.vpp > 1 else None, "megatron")
    owner = rank_of_stages(module.PLACEMENT, p.pp, chunks)
    if p.schedule == "1f1b":
        return owner, operations(p.schedule, p.pp, microbatches, chunks, framework="megatron")
    if p.schedule != "interleaved":
        return owner, in_order(module, p.pp, microbatches, chunks, owner)
    actions = [module.actions(rank, p.pp, microbatches, chunks) for rank in range(p.pp)]
    overlap = scenario.megatron.overlap_p2p_comm
    return owner, [interleaved(rank, row, owner, overlap) for rank, row in enumerate(actions)]


class Groups:
    """Process groups of the simulated ranks, each with the copies that it meets."""

    def __init__(self, grid: Grid, place: Place) -> None:
        self.grid, self.place = grid, place

    def of(self, axis: str, stage: int) -> Group:
        """The group of an axis that the first rank of a stage is in: tp, cp, dp (with cp, for gradients)."""
        g = self.grid
        every = range(g.dp), range(g.cp), range(g.tp)
        if axis == "tp":
            found = [tuple(g.rank(d, stage, t, c) for t in every[2]) for d in every[0] for c in every[1]]
        elif axis == "cp":
            found = [tuple(g.rank(d, stage, t, c) for c in every[1]) for d in every[0] for t in every[2]]
        elif axis == "dp":
            found = [tuple(g.rank(d, stage, t, c) for d in every[0] for c in every[1]) for t in every[2]]
        else:
            found = self._experts(axis, stage)
        return Group(axis, found[0], self.place.beside(found, found[0]), 1)

    def _experts(self, axis: str, stage: int) -> list[tuple[int, ...]]:
        """Groups of experts among a stage's ranks, in order: tensor parts innermost, experts, then their copies."""
        g = self.grid
        start, room, block = g.rank(0, stage, 0), g.dp * g.cp * g.tp, g.ep * g.etp
        if axis == "ep":
            return [
                tuple(start + b + e * g.etp + t for e in range(g.ep))
                for b in range(0, room, block) for t in range(g.etp)
            ]  # fmt: skip
        if axis == "edp":
            return [tuple(start + o + b for b in range(0, room, block)) for o in range(block)]
        raise ValueError(axis)

    def spread(self, scenario: Scenario, experts: int) -> Spread:
        """How experts lie over the ranks of the first stage."""
        p, o, group = scenario.parallel, scenario.megatron, self.of("ep", 0)
        loads = busiest(loads_of(p, experts), p.ep, o.moe_capacity, o.moe_pad_to_capacity)
        hosts = len({rank // self.place.gpus_per_host for rank in group.ranks})
        return Spread(group, self.of("tp", 0) if self.grid.etp > 1 else None, loads, hosts)

    def model_parallel(self) -> Group:
        """Tensor- and pipeline-parallel ranks of one replica, who agree on the gradient's norm."""
        g = self.grid
        mine = tuple(g.rank(0, p, t) for p in range(g.pp) for t in range(g.tp))
        return Group("mp", mine, [mine], g.pp)

    def ends(self) -> Group:
        """First and last stage, who share the embedding."""
        g = self.grid
        found = [
            (g.rank(d, 0, t, c), g.rank(d, g.pp - 1, t, c))
            for d in range(g.dp) for c in range(g.cp) for t in range(g.tp)
        ]  # fmt: skip
        return Group("embedding", found[0], self.place.beside(found, found[0]), 2)

    def transfer_copies(self, source: int, target: int) -> list[int]:
        """Rank offsets of the copies of a transfer between stages that it meets."""
        g = self.grid
        offsets = range(g.dp * g.cp * g.tp)
        pairs = [(source + o, target + o) for o in offsets]
        return [a - source for a, _ in self.place.beside(pairs, pairs[0])]
