"""Fully sharded data parallelism of a Megatron-like rank: layers gathered one ahead, gradients reduced by layer.

As FSDP does it: the next layer is gathered beside the current one's computation, and gathered again in backward where
it was freed in between. With pipeline stages, or where asked, parameters stay for the rest of the step and gradients
are reduced in its last backward pass. With fewer shards than data-parallel ranks (hybrid sharding) shards are summed
over the copies after they are reduced.

Between steps a rank keeps shards: Megatron-FSDP's in 16 bits beside the fp32 ones that the optimizer updates, or
(`fp32_shards`) fp32 ones alone, which are cast as they are gathered. Whole parameters and whole gradients of a layer
come and go with its passes.

Where DeepSpeed's stage 3 has the optimizer in the host's memory, reduced gradients add up there and not here.

Experts are a mesh of their own, over the ranks that have the same ones (Megatron-FSDP's expert data-parallel group);
where no other rank has them they are whole, and nothing of them moves. Frozen weights are gathered and never reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.host_optimizer import sums_of
from prestep.workloads.megatron.passes import Pass
from prestep.workloads.megatron.rank import DataParallel, Held, Rank, Weights, split
from prestep.workloads.megatron.units import Unit
from prestep.workloads.memory.account import Storage
from prestep.workloads.parallel.group import Group

GATHER, REDUCE = "nccl all-gather", "nccl reduce-scatter"
SHARD, SHARD_WIDE = 2, 4  # bytes of a parameter of a shard, in 16 bits or in fp32
Place = tuple[int, int]  # stage, and the number of a layer in it


class Mesh(NamedTuple):
    """Ranks that share one copy of some parameters, and those with the same shard of another copy."""

    group: Group
    copies: Group | None


class FullySharded(DataParallel):
    """Which layers of a rank are whole, and when their gathers end; has what `Replicated` has."""

    clips, sharded = False, True

    def __init__(self, rank: Rank, shards: int) -> None:
        self.rank, self.t, self.shards = rank, rank.tape, shards
        apart = max(1, shards * rank.edp.size // rank.dp.size)
        self.meshes = Mesh(*cut(rank.dp, shards)), Mesh(*cut(rank.edp, apart))
        self.expert_shards = self.meshes[1].group.size
        self.frozen_shards, self.frozen_expert_shards = shards, self.expert_shards
        self.updates_shards = rank.o.fp32_shards
        self.gathered: dict[Place, tuple[int, ...]] = {}
        self.whole: dict[Place, Storage] = {}  # parameters of layers that are gathered
        self.sums: dict[
            Place, Storage
        ] = {}  # gradients of layers that are not reduced yet
        self.reducing: Storage | None = None
        self.on_host = sums_of(rank, REDUCE, always=True)
        self.offloads = self.on_host is not None
        self.added: set[Place] = set()  # layers whose sums on the host have begun
        self.keep = not rank.s.parallel.reshards or rank.grid.pp > 1
        self.units: dict[int, list[Unit]] = {
            stage: [unit for unit, times in rank.parts(stage) for _ in range(times)]
            for stage in rank.stages
        }

    def held(self, parameters: int, states: int) -> Held:
        """Bytes of parameters and of gradients on this rank between steps: shards of both."""
        each = SHARD_WIDE if self.updates_shards else SHARD
        if self.on_host is None:
            return Held(each * states, self.rank.wide * states)
        self.on_host.keep(states, several=microbatches_of(self.rank.s) > 1)
        return Held(each * states, 0)

    def forward(self, stage: int) -> None:
        """A stage's forward pass, each layer gathered while the one before it computes."""
        units = self.units[stage]
        last = len(units) - 1
        for i, unit in enumerate(units):
            self._use(stage, i, i + 1)
            self.rank.emit(unit.forward, 1)
            if not self.keep and i < last:  # the last is needed again at once
                self._free(stage, i)

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """A stage's backward pass; in its last one of the step gradients are reduced, without a pipeline in each."""
        ends = last or not self.keep
        for i, unit in reversed(list(enumerate(self.units[stage]))):
            self._use(stage, i, i - 1)
            if (stage, i) not in self.sums:
                weights = self.rank.weights(unit, 1)
                # Those that no other rank has are among what is held, unless the host has all.
                here = weights.total if self.offloads else self._shared(weights)
                size = float(self.rank.wide * here)
                self.sums[stage, i] = Storage(self.t.memory, size, "gradients")
            self.rank.emit(which(unit), 1)
            if ends:
                self._free(stage, i)
                self.reducing = self.sums.pop((stage, i))  # frees the one before
                self._reduce(self.rank.weights(unit, 1))
                self._send((stage, i), last)

    def _use(self, stage: int, i: int, following: int) -> None:
        """A layer's parameters are there, and those of the next are on their way."""
        self._gather(stage, i)
        if 0 <= following < len(self.units[stage]):
            self._gather(stage, following)
        self.t.wait(self.gathered[stage, i])

    def _gather(self, stage: int, i: int) -> None:
        """Sets off a layer's parameters, which are copied out of the buffer that they arrive in."""
        if (stage, i) in self.gathered:
            return
        t, unit = self.t, self.units[stage][i]
        in_fp8 = unit.name == "layer" and self.rank.o.fp8_param_gather
        here = float((1 if in_fp8 else 2) * self._shared(self._whole(unit)))
        self.whole[stage, i] = Storage(t.memory, here, "buffers")
        for mesh, count in self._on_meshes(self._whole(unit)):
            if mesh.group.size > 1:
                size = float(count * (1 if in_fp8 else 2))
                mesh.group.collective(t, "all_gather", size, GATHER, in_place=True)
                pass_over(t, count, 2 * size, GATHER)
        self.gathered[stage, i] = t.record(GATHER)

    def _free(self, stage: int, i: int) -> None:
        """A layer's parameters are shards again."""
        self.gathered.pop((stage, i), None)
        self.whole.pop((stage, i), None)

    def _shared(self, weights: Weights) -> int:
        """Those of so many parameters of which other ranks have parts."""
        parts = self._on_meshes(weights)
        return sum(count for mesh, count in parts if mesh.group.size > 1)

    def _whole(self, unit: Unit) -> Weights:
        """Parameters that a pass needs, frozen ones with them."""
        trained, frozen = self.rank.weights(unit, 1), split(unit.frozen)
        return Weights(trained.shared + frozen.shared, trained.experts + frozen.experts)

    def _on_meshes(self, weights: Weights) -> Iterator[tuple[Mesh, int]]:
        """What there is on either mesh."""
        for mesh, count in zip(self.meshes, weights, strict=True):
            if count:
                yield mesh, count

    def _reduce(self, weights: Weights) -> None:
        """Gradients, copied in and cast where they are reduced in fp32, to shards; and over copies of the shards."""
        t = self.t
        for (group, copies), count in self._on_meshes(weights):
            size = float(self.rank.wide * count)
            if group.size > 1:
                pass_over(t, count, 2.0 * count + size)
                group.collective(t, "reduce_scatter", size, REDUCE)
            if copies is not None:
                copies.collective(t, "all_reduce", size / group.size, REDUCE)

    def _send(self, place: Place, last: bool) -> None:
        """A layer's reduced gradients go to their sums on the host."""
        if self.on_host is None:
            return
        weights = self.rank.weights(self.units[place[0]][place[1]], 1)
        parts = self._on_meshes(weights)
        count = sum(-(-n // mesh.group.size) for mesh, n in parts)
        self.on_host.add(count, place not in self.added, last)
        self.added.add(place)

    def finish(self) -> None:
        """The optimizer needs all gradients; the next step's gathers need its result."""
        self.reducing = None
        self.t.wait(self.t.record(REDUCE))


def cut(dp: Group, shards: int) -> tuple[Group, Group | None]:
    """The ranks that share one copy of the parameters, and (hybrid sharding) those with the same shard."""
    if shards >= dp.size:
        return dp, None
    blocks = [
        tuple(ranks[i : i + shards])
        for ranks in dp.copies
        for i in range(0, len(ranks), shards)
    ]
    strides = [tuple(ranks[i::shards]) for ranks in dp.copies for i in range(shards)]
    block = Group(dp.axis, dp.ranks[:shards], blocks, dp.arrivals)
    return block, Group("replicas", dp.ranks[::shards], strides, dp.arrivals, dp.axis)
