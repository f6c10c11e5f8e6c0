"""Lowers a Megatron run: one rank of each pipeline stage, its layers as recorded units."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from prestep.sim.graph.opgraph import OpGraph
from prestep.workloads.host_costs import host_costs
from prestep.workloads.job import JobSpec
from prestep.workloads.lowered import Lowered, Site
from prestep.workloads.megatron.engine import MEGATRON, Engine
from prestep.workloads.megatron.schedule import places, schedule_of
from prestep.workloads.megatron.shard import spread_of
from prestep.workloads.megatron.stage import StageStep
from prestep.workloads.megatron.units import Units
from prestep.workloads.models.counts import stage_parameters
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.parallel.folding import Kind, grid_of, kinds_of
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape

# What the host does from the end of a step, which it waits for, to the launch of a graph of the next.
BETWEEN_STEPS = "graph_launch"
#: Transformer Engine's modules, whose prices are the framework's own.
ENGINE = "transformer_engine"
# A group and those that do the same.
Copies = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Step:
    """What all ranks of a step have in common; ``costs`` are the host's, in seconds by operation."""

    scenario: JobSpec
    model: ModelSpec
    groups: Groups
    costs: dict[str, float]
    engine: Engine

    def tape(self, rank: int, shared: Shared) -> Tape:
        """A rank's tape; deterministic programs fill what Transformer Engine asks PyTorch for, before it is written."""
        tape = Tape(rank, shared, self.costs)
        tape.deterministic = self.scenario.training.deterministic
        tape.fills = tape.deterministic and self.engine is MEGATRON
        return tape

    def first_rank(self, kind: Kind, stage: int) -> int:
        """The simulated rank of a stage in the replicas of a kind."""
        return self.groups.grid.rank(kind.replicas[0], stage, 0)


class Models:
    """Units of the usual teams, and of each unusual one by its marks."""

    def __init__(self, step: Step, kinds: Sequence[Kind]) -> None:
        self.step = step
        usual = [
            (stage, kind.replicas[0])
            for kind in kinds
            for stage, odd in enumerate(kind.odd)
            if not odd
        ]
        stage, replica = usual[0] if usual else (0, 0)
        rank = step.groups.grid.rank(replica, stage, 0)
        self.usual = self._units(stage, replica, rank)
        self._odd: dict[frozenset[Hashable], Units] = {}
        # Stage and replica with whose groups units were recorded.
        self._recorded = {self.usual: (stage, replica)}

    def of(self, kind: Kind, stage: int) -> Units:
        """The units of a stage in the replicas of a kind."""
        odd = kind.odd[stage]
        if not odd:
            return self.usual
        if odd not in self._odd:
            pacer = kind.pacers[stage]
            rank = pacer if pacer >= 0 else self.step.first_rank(kind, stage)
            units = self._units(stage, kind.replicas[0], rank)
            self._odd[odd], self._recorded[units] = units, (stage, kind.replicas[0])
        return self._odd[odd]

    def moved(self, kind: Kind, stage: int) -> dict[Copies, Copies]:
        """Groups that a stage meets within its layers, by those with which its units were recorded."""
        groups = self.step.groups
        recorded = groups.team(*self._recorded[self.of(kind, stage)])
        met = groups.team(stage, kind.replicas[0])
        return {
            tuple(one.copies): tuple(other.copies)
            for one, other in zip(recorded, met, strict=True)
            if one.size > 1 and one.copies != other.copies
        }

    def _units(self, stage: int, replica: int, rank: int) -> Units:
        """Units with the groups of a stage and replica, recorded as of one of its ranks."""
        step = self.step
        groups, s, m = step.groups, step.scenario, step.model
        me = groups.grid.rank(replica, stage, 0)
        return Units(
            s,
            m,
            groups.around("tp", me),
            groups.context(me),
            lambda: step.tape(rank, Shared()),
            spread_of(groups, s, m, me) if m.experts else None,
            step.engine.added(s),
            step.engine.trainer(s),
        )


def lower(
    scenario: JobSpec,
    model: ModelSpec,
    site: Site,
    apart: bool = False,
    engine: Engine = MEGATRON,
) -> Lowered:
    """The operation graph of a Megatron step: one rank of each stage for each kind of replica.

    ``apart`` simulates every replica, also those that are alike.
    """
    grid = grid_of(scenario)
    kinds = kinds_of(grid, site.unlike, apart)
    groups = Groups(grid, site.place, kinds)
    step = Step(scenario, model, groups, _host_costs(scenario, site), engine)
    shared = Shared()
    models = Models(step, kinds)
    ranks = _recorded(models, kinds, shared)
    return Lowered(
        _graph(ranks, models, shared),
        {rank.tape.rank: rank.tape.memory for rank in ranks},
        {rank.tape.rank: rank.tape.counts for rank in ranks},
        stage_parameters(model, model.layers, True, True),
        grid,
        (site.host_factor, tuple(site.unlike.marks)),
    )


def _recorded(models: Models, kinds: Sequence[Kind], shared: Shared) -> list[StageStep]:
    """One rank of each stage for each kind of replica, its step recorded on a tape."""
    step, ranks = models.step, []
    schedule = schedule_of(step.scenario, step.engine.pipelines, step.engine.serial)
    stages = places(step.scenario, step.model.layers, schedule.owner)
    for kind in kinds:
        for place in stages:
            tape = step.tape(step.first_rank(kind, place.stage), shared)
            units = models.of(kind, place.stage)
            rank = StageStep(
                step.scenario, units, step.groups, place, tape, kind, step.engine
            )
            rank.record(schedule.issued[place.stage], schedule.runs)
            ranks.append(rank)
    return ranks


def _host_costs(scenario: JobSpec, site: Site) -> dict[str, float]:
    """Seconds of the host by operation; of a step that one CUDA graph replays, only those between steps."""
    captured = "full_iteration" in scenario.megatron.cuda_graph_scope
    modules, own = scenario.megatron.transformer_impl, scenario.training.framework
    costs = host_costs(own if modules == ENGINE else f"megatron-{modules}")
    return {
        name: time * site.host_factor if captured is (name == BETWEEN_STEPS) else 0.0
        for name, time in costs.items()
    }


def _graph(ranks: Sequence[StageStep], models: Models, shared: Shared) -> OpGraph:
    """The recorded ranks as one graph, each with those that it stands for and the one whose speed it has."""
    grid = models.step.groups.grid
    represented = {
        step.tape.rank: tuple(grid.ranks(step.kind.replicas, step.stage))
        for step in ranks
    }
    moved = {rank.tape.rank: models.moved(rank.kind, rank.stage) for rank in ranks}
    pacers = {step.tape.rank: step.kind.pacers[step.stage] for step in ranks}
    return shared.graph(
        (step.tape.program() for step in ranks),
        represented,
        pace={rank: pacer for rank, pacer in pacers.items() if pacer >= 0},
        moved={rank: groups for rank, groups in moved.items() if groups},
    )
