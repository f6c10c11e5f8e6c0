"""Fully sharded data parallelism of a Megatron-like rank: layers gathered one ahead, gradients reduced by layer.

As FSDP does it: the next layer is gathered beside the current one's computation, and gathered again in backward where
it was freed in between. With pipeline stages, or where asked, parameters stay for the rest of the step and gradients
are reduced in its last backward pass. With fewer shards than data-parallel ranks (hybrid sharding) shards are summed
over the copies after they are reduced.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.graph.kernel import Kernel
from workloads.megatron.passes import Pass
from workloads.megatron.rank import Rank
from workloads.megatron.unit import Unit
from workloads.parallel.group import Group

GATHER, REDUCE = "nccl all-gather", "nccl reduce-scatter"
Place = tuple[int, int]  # stage, and the number of a layer in it


class FullySharded:
    """Which layers of a rank are whole, and when their gathers end; has what `Replicated` has."""

    clips, sharded = False, True

    def __init__(self, rank: Rank, shards: int) -> None:
        self.rank, self.t, self.shards = rank, rank.tape, shards
        self.group, self.copies = _cut(rank.dp, shards)
        self.gathered: dict[Place, tuple[int, ...]] = {}
        self.keep = not rank.s.parallel.reshard_after_forward or rank.grid.pp > 1
        self.units: dict[int, list[Unit]] = {
            stage: [unit for unit, times in rank.parts(stage) for _ in range(times)]
            for stage in rank.stages
        }

    def held(self, parameters: int, states: int) -> tuple[int, int]:
        """Bytes of parameters and of gradients on this rank between steps: shards, those of parameters with Adam's."""
        return 0, 4 * states

    def waits(self, stage: int) -> bool:
        """Every pass waits for the gathers of its layers."""
        return True

    def begin(self) -> None:
        """Nothing: the first pass gathers what it needs."""

    def updated(self) -> None:
        """Nothing: the next step's passes gather what was updated."""

    def forward(self, stage: int) -> None:
        """A stage's forward pass, each layer gathered while the one before it computes."""
        units = self.units[stage]
        for i, unit in enumerate(units):
            self._use(stage, i, i + 1)
            self.rank.emit(unit.forward, 1)
            if not self.keep and i < len(units) - 1:  # the last is needed again at once
                self.gathered.pop((stage, i), None)

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """A stage's backward pass; in its last one of the step gradients are reduced, without a pipeline in each."""
        for i in reversed(range(len(self.units[stage]))):
            unit = self.units[stage][i]
            self._use(stage, i, i - 1)
            self.rank.emit(which(unit), 1)
            if not self.keep or last:
                self.gathered.pop((stage, i), None)
            if last or not self.keep:
                self._reduce(sum(self.rank.weights(unit, 1)))

    def _use(self, stage: int, i: int, following: int) -> None:
        """A layer's parameters are there, and those of the next are on their way."""
        self._gather(stage, i)
        if 0 <= following < len(self.units[stage]):
            self._gather(stage, following)
        self.t.wait(self.gathered[stage, i])

    def _gather(self, stage: int, i: int) -> None:
        if (stage, i) in self.gathered:
            return
        t, count = self.t, sum(self.rank.weights(self.units[stage][i], 1))
        layer = self.units[stage][i].name == "layer"
        size = float(count * (1 if layer and self.rank.o.fp8_param_gather else 2))
        self.group.collective(t, "all_gather", size, GATHER, in_place=True)
        t.launch(
            Kernel("fused", (count,), bytes=2 * size), GATHER
        )  # copied out of the buffer
        self.gathered[stage, i] = t.record(GATHER)

    def _reduce(self, count: int) -> None:
        t, wide = self.t, self.rank.wide
        # Copied in, and cast where it is reduced in fp32.
        t.launch(Kernel("fused", (count,), bytes=float((2 + wide) * count)))
        self.group.collective(t, "reduce_scatter", float(wide * count), REDUCE)
        if self.copies is not None:
            self.copies.collective(
                t, "all_reduce", wide * count / self.group.size, REDUCE
            )

    def finish(self) -> None:
        """The optimizer needs all gradients; the next step's gathers need its result."""
        self.t.wait(self.t.record(REDUCE))


def _cut(dp: Group, shards: int) -> tuple[Group, Group | None]:
    """The ranks that share one copy of the parameters, and (hybrid sharding) those with the same shard."""
    if shards >= dp.size:
        return dp, None
    blocks = [
        tuple(ranks[i : i + shards])
        for ranks in dp.copies
        for i in range(0, len(ranks), shards)
    ]
    strides = [tuple(ranks[i::shards]) for ranks in dp.copies for i in range(shards)]
    mine = dp.ranks[:shards]
    return Group("dp", mine, blocks, dp.arrivals), Group(
        "replicas", dp.ranks[::shards], strides, dp.arrivals
    )
