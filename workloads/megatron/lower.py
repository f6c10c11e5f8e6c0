"""Lowers a Megatron run: one rank of each pipeline stage, its layers as recorded units."""

from __future__ import annotations

from collections.abc import Sequence

from sim.graph.opgraph import OpGraph
from workloads.host_costs import host_costs
from workloads.job import Job
from workloads.job.layout import grad_accumulation_of, microbatches_of
from workloads.lowered import Lowered, Site
from workloads.megatron.engine import MEGATRON, Engine
from workloads.megatron.folding import Kind, kinds_of
from workloads.megatron.grid import Grid, grid_of
from workloads.megatron.groups import Groups
from workloads.megatron.pipeline import Issued, in_order, interleaved
from workloads.megatron.rank import Place
from workloads.megatron.stage import StageStep
from workloads.megatron.units import Units
from workloads.models.model import ModelSpec
from workloads.parallel.pipeline import layers_of_stages
from workloads.schedules import checked, rank_of_stages
from workloads.schedules.runtime import Compute, operations
from workloads.torch.recorder import PHASES, Shared
from workloads.torch.tape import Tape


def lower(
    scenario: Job,
    model: ModelSpec,
    site: Site,
    apart: bool = False,
    engine: Engine | None = None,
) -> Lowered:
    """The operation graph of a Megatron step: one rank of each stage for each kind of replica.

    ``apart`` simulates every replica, also those that are alike.
    """
    engine = engine or MEGATRON
    grid, costs = grid_of(scenario), _host_costs(scenario, site)
    kinds = kinds_of(grid, site.unlike, apart)
    groups = Groups(grid, site.place, len(kinds))
    models = Models(scenario, model, groups, costs, kinds, engine)
    owner, rows = _schedule(scenario)
    runs = grad_accumulation_of(scenario) if grid.pp > 1 else 1
    places = _places(scenario, model, owner)
    shared, ranks = Shared(), []
    for kind in kinds:
        for place in places:
            rank = grid.rank(kind.replicas[0], place.stage, 0)
            tape, units = Tape(rank, shared, costs), models.of(kind, place.stage)
            step = StageStep(scenario, units, groups, place, tape, kind, engine)
            step.record(rows[place.stage], runs)
            ranks.append(step)
    parameters = models.usual.whole(model.layers)
    return _lowered(ranks, grid, shared, parameters, site)


def _places(scenario: Job, model: ModelSpec, owner: tuple[int, ...]) -> list[Place]:
    """The pipeline ranks, each with the layers of its stages; ``owner`` is the rank of every stage."""
    cuts = _cuts(scenario, model.layers, len(owner))
    return [
        Place(rank, {i: cuts[i] for i, at in enumerate(owner) if at == rank}, owner)
        for rank in range(scenario.parallel.pp)
    ]


def _lowered(
    ranks: Sequence[StageStep], grid: Grid, shared: Shared, parameters: int, site: Site
) -> Lowered:
    return Lowered(
        _graph(ranks, grid, shared),
        {step.tape.rank: step.tape.memory for step in ranks},
        {step.tape.rank: step.tape.counts for step in ranks},
        parameters,
        grid,
        (site.host_factor, tuple(site.unlike.marks)),
    )


def _host_costs(scenario: Job, site: Site) -> dict[str, float]:
    """Seconds of the host by operation; a step that one CUDA graph replays keeps it free of operators."""
    captured = "full_iteration" in scenario.megatron.cuda_graph_scope
    factor = 0.0 if captured else site.host_factor
    costs = host_costs(scenario.training.framework)
    return {name: time * factor for name, time in costs.items()}


def _graph(ranks: Sequence[StageStep], grid: Grid, shared: Shared) -> OpGraph:
    """The recorded ranks as one graph, each with those that it stands for and the one whose speed it has."""
    pacers = {step.tape.rank: step.kind.pacers[step.stage] for step in ranks}
    return OpGraph(
        tuple(step.tape.program() for step in ranks),
        tuple(shared.kernels),
        tuple(shared.rendezvous.comms),
        tuple(shared.streams),
        PHASES,
        {step.tape.rank: _represented(step.kind, step.stage, grid) for step in ranks},
        pace={rank: pacer for rank, pacer in pacers.items() if pacer >= 0},
    )


def _represented(kind: Kind, stage: int, grid: Grid) -> tuple[int, ...]:
    """Ranks of a stage in all replicas of a kind."""
    return tuple(
        grid.rank(d, stage, t, c)
        for d in kind.replicas
        for c in range(grid.cp)
        for t in range(grid.tp)
    )


class Models:
    """The model's units where they lie: those of teams that are not like the others are recorded for themselves."""

    def __init__(
        self,
        scenario: Job,
        model: ModelSpec,
        groups: Groups,
        costs: dict[str, float],
        kinds: Sequence[Kind],
        engine: Engine,
    ) -> None:
        self.added = engine.added(scenario)
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
            self.added,
        )


def _cuts(scenario: Job, layers: int, stages: int) -> list[range]:
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


def _schedule(scenario: Job) -> tuple[tuple[int, ...], Sequence[Sequence[Issued]]]:
    """Pipeline rank of every stage, and what each rank issues."""
    p, microbatches = scenario.parallel, microbatches_of(scenario)
    if p.pp == 1:
        return (0,), [_in_turns(microbatches)]
    microbatches //= grad_accumulation_of(scenario)
    virtual = p.vpp if p.vpp > 1 else None
    module, chunks = checked(p.schedule, p.pp, microbatches, virtual, few=True)
    owner = rank_of_stages(module.PLACEMENT, p.pp, chunks)
    if p.schedule == "1f1b":
        return owner, operations(p.schedule, p.pp, microbatches, chunks, few=True)
    if p.schedule != "interleaved":
        return owner, in_order(module, p.pp, microbatches, chunks, owner)
    overlap = scenario.megatron.overlap_p2p_comm
    actions = [module.actions(rank, p.pp, microbatches, chunks) for rank in range(p.pp)]
    return owner, [
        interleaved(rank, row, owner, overlap) for rank, row in enumerate(actions)
    ]


def _in_turns(microbatches: int) -> list[Issued]:
    """Without a pipeline: each microbatch forward, then backward."""
    return [Compute(0, kind, i) for i in range(microbatches) for kind in "FB"]
