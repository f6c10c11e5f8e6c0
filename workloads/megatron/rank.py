"""One pipeline rank of a Megatron run: its stages, their units, and the groups that it is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from prestep.workloads.job import JobSpec
from prestep.workloads.megatron.passes import Pass
from prestep.workloads.megatron.pipeline import Alignment
from prestep.workloads.megatron.pipeline_layout import pipeline_layout
from prestep.workloads.megatron.shard import EXPERTS_PREFIX
from prestep.workloads.megatron.units import Unit, Units
from prestep.workloads.optimizer import optimizer
from prestep.workloads.parallel.folding import Kind
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.sharding.host import HostMemory
from prestep.workloads.torch.tape import Tape

if TYPE_CHECKING:
    from prestep.workloads.megatron.engine import Engine

DP = "nccl dp"


@dataclass(frozen=True)
class Weights:
    """Parameters of a rank: those that all data-parallel ranks share, and those of its experts."""

    shared: int = 0
    experts: int = 0

    def __add__(self, other: Weights) -> Weights:
        return Weights(self.shared + other.shared, self.experts + other.experts)

    def __mul__(self, times: int) -> Weights:
        return Weights(times * self.shared, times * self.experts)

    @property
    def total(self) -> int:
        """All of them."""
        return self.shared + self.experts


def split(counts: Mapping[str, int]) -> Weights:
    """Parameters by their names as those that are shared and those of experts."""
    experts = sum(n for name, n in counts.items() if name.startswith(EXPERTS_PREFIX))
    return Weights(sum(counts.values()) - experts, experts)


class Held(NamedTuple):
    """Bytes of a rank between steps: of parameters as layers take them, or their shards, gradients, and buffers."""

    parameters: int
    gradients: int
    buffers: int = 0


class DataParallel:
    """What a rank's passes do with gradients and parameters besides computing."""

    rank: Rank
    clips: bool  # gradients are scaled in place before the optimizer reads them
    updates_shards: bool = False  # the optimizer updates the parameters that are held, and has no copy of them
    offloads: bool = False  # gradients go to the host's memory as they are reduced
    sharded: bool
    shards: int
    expert_shards: int
    frozen_shards: int
    frozen_expert_shards: int

    def held(self, parameters: int, states: int) -> Held:
        """Bytes on this rank between steps."""
        raise NotImplementedError

    @property
    def updated_tensors(self) -> float:
        """Tensors of which the optimizer updates a part here."""
        return self.rank.tensors

    def forward(self, stage: int) -> None:
        """A stage's forward pass."""
        raise NotImplementedError

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """A stage's backward pass; ``last``: of the step."""
        raise NotImplementedError

    def finish(self) -> None:
        """The optimizer is next."""
        raise NotImplementedError

    def waits(self, stage: int) -> bool:
        """Whether a stage's next forward pass may wait for gathers."""
        return True

    def begin(self) -> None:
        """A step begins."""

    def before(self, stage: int) -> None:
        """A forward pass is next."""

    def after(self, stage: int) -> None:
        """A backward pass has ended."""

    def early(self, elements: int) -> int:
        """Parameters that are updated before the rest."""
        return 0

    def updated_early(self) -> None:
        """They are."""

    def updated(self) -> None:
        """All are; what is sharded is gathered by the next step's passes."""


@dataclass(frozen=True)
class Place:
    """Where a rank is in the pipeline: its number, its stages with their layers, and who has which stage."""

    stage: int
    stages: dict[int, range]
    owner: Sequence[int]


class Rank:
    """The units of one pipeline rank."""

    def __init__(
        self,
        scenario: JobSpec,
        model: Units,
        groups: Groups,
        place: Place,
        tape: Tape,
        kind: Kind,
        engine: Engine,
    ) -> None:
        self.s, self.o = scenario, scenario.megatron
        self.model, self.tape = model, tape
        self.groups, self.grid = groups, groups.grid
        self.kind, self.replica = kind, kind.replicas[0]
        self.optimizer = optimizer(scenario.training.optimizer)
        self.stage, self.stages, self.owner = place.stage, place.stages, place.owner
        tape.blocking = self.o.launch_blocking
        self.dp = groups.of("dp", self.stage, 0)
        self.tp = groups.of("tp", self.stage, self.replica)
        self.edp = groups.of("edp", self.stage, 0)  # ranks with the same experts
        self.remaining: dict[int, int] = {}  # passes that make gradients, by stage
        self.alignment = Alignment()
        #: Whether tokens of the pass that is recorded travel beside the computation of another microbatch.
        self.accompanied = False
        self._parts: dict[tuple[int, bool], tuple[tuple[Unit, int], ...]] = {}
        self.engine, self.data = engine, engine.data_parallel(self)

    def parts(self, stage: int, aside: bool = False) -> Sequence[tuple[Unit, int]]:
        """Units of a stage in the order of the forward pass, with repetitions; ``aside``: see `Units.layer`.

        Every pass of every microbatch asks for them: they are put together once.
        """
        key = stage, aside or self.accompanied
        if key not in self._parts:
            self._parts[key] = tuple(self._units(*key))
        return self._parts[key]

    def _units(self, stage: int, aside: bool) -> Iterator[tuple[Unit, int]]:
        """The parts of a stage, each recorded where it is wanted for the first time."""
        model = self.model
        if stage == 0:
            yield model.embedding, 1
        whole = self.o.recompute_num_layers or 0
        layers = enumerate(self.stages[stage])
        units = (model.layer(i, aside, n < whole) for n, i in layers)
        for unit, repetitions in groupby(units):
            yield unit, len(list(repetitions))
        further = model.m.mtp_layers
        if stage == self._predicting:
            if model.m.mtp_shared and further:
                yield model.further(aside), further
            else:
                for _ in range(further):
                    yield model.further(aside), 1
        if stage == len(self.owner) - 1:
            yield model.head, 1 + further

    @property
    def _predicting(self) -> int:
        """The stage that has the layers of multi-token prediction: the last, unless a layout says another."""
        last, text = len(self.owner) - 1, self.o.pipeline_layout
        return last if text is None or last == 0 else pipeline_layout(text).prediction

    def weights(self, unit: Unit, times: int) -> Weights:
        """Parameters of repetitions of a unit."""
        return split(unit.parameters) * self.copies(unit, times)

    def copies(self, unit: Unit, times: int) -> int:
        """Repetitions of a unit with parameters of their own: multi-token prediction uses the head again."""
        shared = unit.name == "further" and self.model.m.mtp_shared
        return 1 if unit.name == "head" or shared else times

    def counted(self, stage: int) -> int:
        """Parameters of a stage on this rank (a tied head is the embedding's copy, or the embedding itself)."""
        total = tied = 0
        for unit, times in self.parts(stage):
            total += self.weights(unit, times).total
            counts = unit.parameters.items()
            tied += sum(n for name, n in counts if self.is_tied(name))
        return total - tied

    def is_tied(self, name: str) -> bool:
        """Whether a parameter is the embedding of this rank."""
        return name == "head" and self.model.m.tied_embeddings and 0 in self.stages

    @property
    def parameters(self) -> int:
        return sum(self.counted(stage) for stage in self.stages)

    @property
    def units(self) -> Iterator[tuple[Unit, int]]:
        """Units of all stages, and how many of each have parameters of their own."""
        for stage in self.stages:
            for unit, times in self.parts(stage):
                yield unit, self.copies(unit, times)

    @property
    def tensors(self) -> int:
        """Trained parameters, each a tensor that the host walks over."""
        return sum(times * len(unit.parameters) for unit, times in self.units)

    @property
    def matrices(self) -> int:
        """Those of them that may be kept in 8 bits: the matrices of layers."""
        layers = (u for u in self.units if u[0].name in ("layer", "further"))
        wide = self.model.m.hidden
        return sum(
            times * sum(n > wide for n in unit.parameters.values())
            for unit, times in layers
        )

    @property
    def frozen(self) -> dict[str, Weights]:
        """Parameters that stay as they are, by the name of their unit."""
        counts: dict[str, Weights] = {}
        for unit, times in self.units:
            own = {k: n for k, n in unit.frozen.items() if not self.is_tied(k)}
            before = counts.get(unit.name, Weights())
            counts[unit.name] = before + split(own) * times
        return counts

    @property
    def experts(self) -> int:
        """Parameters of experts among them."""
        return sum(times * split(unit.parameters).experts for unit, times in self.units)

    @property
    def own(self) -> Weights:
        """All parameters of this rank."""
        experts = self.experts
        return Weights(self.parameters - experts, experts)

    def with_copies(
        self, op: str, weights: Weights, wide: float, in_place: bool = False
    ) -> None:
        """A collective of so many bytes a parameter with the ranks that have the same ones."""
        for group, count in ((self.dp, weights.shared), (self.edp, weights.experts)):
            if count and group.size > 1:
                size = float(wide * count)
                group.collective(self.tape, op, size, DP, in_place=in_place)

    def emit(self, which: Pass, times: int) -> None:
        """Repetitions of a unit; where the host waits for the GPU within, part by part."""
        if not which.stops:
            self._issue(which, times)
            return
        for _ in range(times):
            for part in which.parts:
                self._issue(part, 1)
                if part.waits:
                    self.tape.synchronize()

    def _issue(self, which: Pass, times: int) -> None:
        """Repetitions as two kernels; the host's time beyond its first launch is spent before the second."""
        t = self.tape
        if not which.graph.operations:
            t.host_pending += times * which.host
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

    @cached_property
    def host(self) -> HostMemory:
        """Its host's memory, with numbers in fp32."""
        alone = self.groups.itself(self.tape.rank)
        return HostMemory(self.tape, alone, 4, self.s.parallel.offload_pinned)

    @property
    def ranks(self) -> int:
        """Of a stage in one replica."""
        return self.grid.tp * self.grid.cp

    @property
    def wide(self) -> int:
        """Bytes of a gradient in the buffer that accumulates and reduces it."""
        return 4 if self.o.main_grads == "fp32" else 2
