"""DeepSpeed's ZeRO 3 around Megatron's layers: the hooks of `zero3`, hung on the modules that have parameters.

A layer is one unit here: what its modules gather comes before it, and what they free and reduce behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.megatron.passes import Pass
from prestep.workloads.megatron.rank import DataParallel, Held, Rank
from prestep.workloads.megatron.units import Unit
from prestep.workloads.memory.account import Storage
from prestep.workloads.parallel.group import Group
from prestep.workloads.sharding.zero3 import REDUCE, ShardedParameters
from prestep.workloads.torch.tape import Tensor

NARROW = 2  # bytes of a parameter, and of its gradient, as layers have them
Run = tuple[
    Unit, list[Tensor]
]  # a unit, and its parameters in the order of the forward pass


class UnitParameters(ShardedParameters):
    """Parameters of a rank's units; what it keeps of them between steps is counted with its optimizer."""

    def __init__(self, rank: Rank, parameters: list[Tensor], group: Group) -> None:
        host = rank.host if rank.s.parallel.offload == "optimizer" else None
        last, size = microbatches_of(rank.s) - 1, rank.o.bucket_size or 0
        super().__init__(rank.tape, parameters, group, 3, host, last, size, rank.wide)

    def _resident(self) -> list[Storage]:
        if self.host is not None:
            self.host.keep("gradients", self.own, self.sums)
        return []


class GatheredUnits(DataParallel):
    """Passes whose units are gathered along the course of a microbatch, and gradients reduced in buckets."""

    clips, sharded = False, True

    def __init__(self, rank: Rank, shards: int) -> None:
        self.rank, self.t = rank, rank.tape
        self.offloads = rank.s.parallel.offload == "optimizer"
        self.shards = self.expert_shards = shards
        self.frozen_shards = self.frozen_expert_shards = shards
        first = rank.grid.rank(0, rank.stage, 0)
        group, copies = rank.groups.cut(rank.dp, shards, first)
        self.tensors: dict[tuple[int, int, str], Tensor] = {}
        (stage,) = rank.stages
        self.runs = self._runs(stage)
        self.zero = UnitParameters(rank, [*self.tensors.values()], group)
        self.zero.copies = copies
        modules = [[p] for _, parameters in self.runs for p in parameters]
        numbers = {id(p): n for n, p in enumerate(self.zero.parameters)}
        course = [[numbers[id(p)]] for (p,) in [*modules, *reversed(modules)]]
        self.zero.follow(course)

    def _runs(self, stage: int) -> list[Run]:
        """Units in their order; one that runs again with the same parameters has the same tensors."""
        return [
            (unit, self._parameters(unit, place, n % self.rank.copies(unit, times)))
            for place, (unit, times) in enumerate(self.rank.parts(stage))
            for n in range(times)
        ]

    def _parameters(self, unit: Unit, place: int, copy: int) -> list[Tensor]:
        found = []
        for name, count in (unit.parameters | unit.frozen).items():
            key = (
                (0, 0, "embedding") if self.rank.is_tied(name) else (place, copy, name)
            )
            own = self.tensors.setdefault(key, Tensor(None, (count,), NARROW))
            own.requires_grad = name in unit.parameters
            found.append(own)
        return found

    def held(self, parameters: int, states: int) -> Held:
        """Bytes of parts of parameters, and of gradients unless the host sums them."""
        return Held(NARROW * states, 0 if self.offloads else self.rank.wide * states)

    def forward(self, stage: int) -> None:
        """A stage's forward pass."""
        self.zero.before_forward()
        for unit, parameters in self.runs:
            self._each(parameters, self.zero.fetch, "zero3_pre_forward")
            self.rank.emit(unit.forward, 1)
            self._each(parameters, self.zero.free, "zero3_post_forward")

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """A stage's backward pass: every microbatch's gradients are reduced."""
        for unit, parameters in reversed(self.runs):
            back = parameters[::-1]
            self._each(back, self.zero.fetch, "zero3_pre_backward")
            self._run_back(which(unit), back)
            # Nothing tells an embedding, whose input has no gradient, that it has run backward.
            if unit.name != "embedding":
                self._each(back, self.zero.free, "zero3_post_backward")
        self.zero.after_backward()

    def _each(
        self,
        parameters: Sequence[Tensor],
        hook: Callable[[Sequence[Tensor], str], None],
        name: str,
    ) -> None:
        """A hook of every module, each with one parameter."""
        for p in parameters:
            hook([p], name)

    def _run_back(self, back: Pass, parameters: Sequence[Tensor]) -> None:
        """A unit's backward pass, whose gradients go into the bucket one by one."""
        trained = [p for p in parameters if p.requires_grad]
        for p in trained:
            p.grad = self.t.empty(p.shape, NARROW, "gradients")
        self.rank.emit(back, 1)
        for p in trained:
            self.zero.ready(p)

    def finish(self) -> None:
        """The optimizer is next."""
        self.t.wait(self.t.record(REDUCE))

    def updated(self) -> None:
        """Small parameters, which stay gathered, come at once."""
        self.zero.gather_small()
