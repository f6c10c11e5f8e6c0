"""The model's units where they lie: those of teams that are not like the others are recorded for themselves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from prestep.workloads.job import JobSpec
from prestep.workloads.megatron.engine import Engine
from prestep.workloads.megatron.folding import Kind
from prestep.workloads.megatron.groups import Groups
from prestep.workloads.megatron.units import Units
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.tape import Tape

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
        groups, s, experts = step.groups, step.scenario, step.model.experts
        return Units(
            s,
            step.model,
            groups.of("tp", stage, replica),
            groups.context(stage, replica),
            lambda: Tape(rank, Shared(), step.costs),
            groups.spread(s, experts, stage, replica) if experts else None,
            step.engine.added(s),
            step.engine.trainer(s),
        )
