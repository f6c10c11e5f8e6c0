"""One pipeline rank of a Megatron run: its stages, their units, and the groups that it is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from workloads.job import Job
from workloads.megatron.folding import Kind
from workloads.megatron.groups import Groups
from workloads.megatron.passes import Pass
from workloads.megatron.spread import EXPERTS_PREFIX
from workloads.megatron.unit import Unit
from workloads.megatron.units import Units
from workloads.optimizer import optimizer
from workloads.torch.tape import Tape


class DataParallel(Protocol):
    """What a rank's passes do with gradients and parameters besides computing."""

    clips: bool  # gradients are scaled in place before the optimizer reads them
    sharded: bool
    shards: int

    def held(self, parameters: int, states: int) -> tuple[int, int]: ...
    def waits(self, stage: int) -> bool: ...
    def begin(self) -> None: ...
    def forward(self, stage: int) -> None: ...
    def backward(
        self, stage: int, which: Callable[[Unit], Pass], last: bool
    ) -> None: ...
    def finish(self) -> None: ...
    def updated(self) -> None: ...


@dataclass(frozen=True)
class Place:
    """Where a rank is in the pipeline: its number, its stages with their layers, and who has which stage."""

    stage: int
    stages: dict[int, range]
    owner: Sequence[int]


class Rank:
    """The units of one pipeline rank."""

    data: DataParallel

    def __init__(
        self,
        scenario: Job,
        model: Units,
        groups: Groups,
        place: Place,
        tape: Tape,
        kind: Kind,
    ) -> None:
        self.s, self.model, self.groups, self.tape, self.kind = (
            scenario,
            model,
            groups,
            tape,
            kind,
        )
        self.grid, self.replica, self.o = (
            groups.grid,
            kind.replicas[0],
            scenario.megatron,
        )
        self.optimizer = optimizer(scenario.training.optimizer)
        self.stage, self.stages, self.owner = place.stage, place.stages, place.owner
        tape.blocking = self.o.launch_blocking
        self.dp = groups.of("dp", self.stage, 0)
        self.tp = groups.of("tp", self.stage, self.replica)
        self.edp = groups.of("edp", self.stage, 0)  # ranks with the same experts

    def parts(self, stage: int, aside: bool = False) -> Iterator[tuple[Unit, int]]:
        """Units of a stage in the order of the forward pass, with repetitions; ``aside``: see `Model.layer`."""
        if stage == 0:
            yield self.model.embedding, 1
        whole = self.o.recompute_num_layers or 0
        layers = (
            self.model.layer(i, aside, n < whole)
            for n, i in enumerate(self.stages[stage])
        )
        for unit, run in groupby(layers):
            yield unit, len(list(run))
        if stage == len(self.owner) - 1:
            for _ in range(self.model.m.mtp_layers):
                yield self.model.further(aside), 1
            yield self.model.head, 1 + self.model.m.mtp_layers

    def weights(self, unit: Unit, times: int) -> tuple[int, int]:
        """Parameters of repetitions of a unit: those that all data-parallel ranks share, and those of experts."""
        times = (
            1 if unit.name == "head" else times
        )  # which multi-token prediction uses again
        experts = sum(
            n for name, n in unit.parameters.items() if name.startswith(EXPERTS_PREFIX)
        )
        return times * (sum(unit.parameters.values()) - experts), times * experts

    def counted(self, stage: int) -> int:
        """Parameters of a stage on this rank (a tied head is the embedding's copy, or the embedding itself)."""
        total = sum(sum(self.weights(unit, times)) for unit, times in self.parts(stage))
        return total - sum(
            n
            for unit, _ in self.parts(stage)
            for name, n in unit.parameters.items()
            if self._tied_here(name)
        )

    def _tied_here(self, name: str) -> bool:
        return name == "head" and self.model.m.tied_embeddings and 0 in self.stages

    @property
    def parameters(self) -> int:
        return sum(self.counted(stage) for stage in self.stages)

    @property
    def experts(self) -> int:
        """Parameters of experts among them."""
        return sum(
            self.weights(unit, times)[1]
            for stage in self.stages
            for unit, times in self.parts(stage)
        )

    def emit(self, which: Pass, times: int) -> None:
        """Repetitions of a unit as two kernels; the host's time beyond its first launch is spent before the second."""
        t = self.tape
        if not which.graph.operations:
            return
        head, tail = which.chains(times)
        if t.blocking:
            # Each kernel begins when the host has come to it and the one before has ended: both times in full.
            t.host_pending += times * which.host
            t.cpu("blocked_launch", times * which.launches)
            t.launch(head, name=which.name)
            t.launch(tail, name=which.name)
            return
        t.host_pending += which.first
        t.launch(head, name=which.name)
        t.host_pending += times * which.host - which.first
        t.launch(tail, name=which.name)

    @property
    def wide(self) -> int:
        """Bytes of a gradient in the buffer that accumulates and reduces it."""
        return 4 if self.o.main_grads == "fp32" else 2
