"""Data parallelism of a Megatron rank that holds all its parameters: gradients in buckets, summed over the replicas.

With the distributed optimizer (``zero1``) gradients are reduced to shards, and the parameters that each rank
updates are gathered again; both overlap with computation where asked
(Megatron-LM, core/distributed/distributed_data_parallel.py and core/optimizer/distrib_optimizer.py).
"""

from __future__ import annotations

from collections.abc import Callable

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.megatron.buckets import (
    Bucket,
    Bucketed,
    Stretch,
    bucketed,
    total,
    whole,
)
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.passes import Pass
from prestep.workloads.megatron.rank import DP, DataParallel, Held, Rank, Weights
from prestep.workloads.megatron.units import Unit

# Parameters of a bucket with overlapping reductions (DistributedDataParallelConfig: 40 million, or 1 million times the
# number of data-parallel ranks if that is more).
BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000


class Replicated(DataParallel):
    """What a rank's passes do with gradients and parameters besides computing."""

    clips = True  # gradients are scaled in place before Adam reads them

    def __init__(self, rank: Rank, sharded: bool) -> None:
        self.rank, self.t, self.o, self.sharded = rank, rank.tape, rank.o, sharded
        self.shards = rank.dp.size if sharded else 1
        self.expert_shards = rank.edp.size if sharded else 1
        self.frozen_shards = self.frozen_expert_shards = 1
        self.alone = rank.dp.size == 1
        self.gathers = sharded and self.o.overlap_param_gather and not self.alone
        self.reduces = self.o.overlap_grad_reduce and not self.alone
        self.gathered: dict[tuple[int, int], tuple[int, ...]] = {}
        self.here: set[tuple[int, int]] = set()
        self._chunks: dict[int, Bucketed] = {}
        self.seen: set[int] = set()
        self.reduced: set[int] = set()

    def waits(self, stage: int) -> bool:
        """Whether a stage's next forward pass waits for parameters that the last step updated."""
        return self.gathers and stage not in self.seen

    def held(self, parameters: int, states: int) -> Held:
        """Bytes of parameters and of gradients on this rank."""
        return Held(2 * parameters, self.rank.wide * parameters)

    def begin(self) -> None:
        """Gradients are zeroed; aligned gathers of the first two chunks set off, or the first bucket's."""
        rank = self.rank
        self.t.launch(zeroed(rank.parameters, rank.wide))
        if not self.gathers:
            return
        first, *others = sorted(rank.stages)
        if self._gathers_early:
            # Its gather was the last communication of the optimizer's step.
            self.gathered[first, 0] = self.t.record(DP)
        if self._aligned and self.o.align_param_gather:
            self._gather_chunk(first)
            self._gather_chunk(others[0])
        elif self.o.param_gather_from_start:
            self._gather_bucket(first, 0)

    def before(self, stage: int) -> None:
        """A forward pass is next: the gather of a later chunk may set off."""
        if self._aligned and self.o.align_param_gather and self.gathers:
            chunk = self.rank.alignment.gathers.get((stage, self.t.microbatch))
            if chunk is not None:
                self._gather_chunk(chunk)

    def forward(self, stage: int) -> None:
        """A stage's forward pass; the step's first one waits for the parameters of each bucket."""
        first = self.waits(stage)
        self.seen.add(stage)
        for stretch in self._chunk(stage).stretches:
            if first and stretch.later:
                self._in_parts(stage, stretch)
                continue
            if first:
                self._wait_for(stage, stretch.needs)
                self._set_off(stage, stretch.ahead)
            self.rank.emit(stretch.unit.forward, stretch.times)

    def _in_parts(self, stage: int, stretch: Stretch) -> None:
        """A unit's forward pass; every part waits for its bucket, and then the next one sets off."""
        unit = stretch.unit
        begins = [(0, stretch.needs), *stretch.later]
        ends = [*(operation for operation, _ in stretch.later), None]
        for (begin, bucket), end in zip(begins, ends, strict=True):
            self._wait_for(stage, bucket)
            self._set_off(stage, bucket + 1)
            self.rank.emit(unit.between(begin, end), 1)

    def _wait_for(self, stage: int, bucket: int) -> None:
        """A bucket's parameters, and those gathered before it, are here."""
        for number in range(bucket + 1):
            self._gather_bucket(stage, number)
        if (stage, bucket) not in self.here:
            self.here.add((stage, bucket))
            self.t.wait(self.gathered[stage, bucket])

    def _set_off(self, stage: int, ahead: int) -> None:
        """Buckets up to this one are on their way, unless chunks are aligned; then the next chunk's first."""
        if self._aligned and self.o.align_param_gather:
            return
        count = len(self._chunk(stage).buckets)
        for bucket in range(min(ahead + 1, count)):
            self._gather_bucket(stage, bucket)
        following = [place for place in sorted(self.rank.stages) if place > stage]
        if ahead >= count and following and self.o.param_gather_from_start:
            self._gather_bucket(following[0], 0)

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """Passes that make gradients of weights, from the last unit on; in the step's last one buckets are reduced."""
        aligned = self._aligned and self.o.align_grad_reduce
        chunk = self._chunk(stage)
        for stretch in reversed(chunk.stretches):
            self.rank.emit(which(stretch.unit), stretch.times)
            if last and self.reduces and not aligned:
                for number in stretch.completes:
                    self._reduce(chunk.buckets[number].reduced)

    def after(self, stage: int) -> None:
        """A backward pass has ended: aligned reductions of a chunk that is through set off."""
        if not (self._aligned and self.o.align_grad_reduce and self.reduces):
            return
        chunk = self.rank.alignment.reductions.get((stage, self.t.microbatch))
        if chunk is not None and self.rank.remaining[chunk] == 0:
            self._reduce_chunk(chunk)

    def finish(self) -> None:
        """What was not reduced beside the backward passes; the optimizer waits for it."""
        if self.alone:
            return
        if not self.reduces:
            # The buffer is divided by the number of ranks first (DistributedDataParallel.allreduce_gradients).
            n = self.rank.parameters
            pass_over(self.t, n, 2.0 * self.rank.wide * n)
            self._reduce(self.rank.own)
        elif self._aligned and self.o.align_grad_reduce:
            for chunk in sorted(self.rank.stages):
                self._reduce_chunk(chunk)
        self.t.wait(self.t.record(DP))

    def early(self, elements: int) -> int:
        """Of so many elements that the optimizer updates here, those before the rest, which hides their gather."""
        if not self._gathers_early:
            return 0
        first = self.rank.counted(min(self.rank.stages))
        return elements * first // self.rank.parameters

    def updated_early(self) -> None:
        """The first chunk has been updated: it is gathered."""
        self._gather(self._chunk(min(self.rank.stages)).buckets[0])

    def updated(self) -> None:
        """The optimizer has run: without overlap its shards are gathered now."""
        if self.sharded and not self.alone and not self.o.overlap_param_gather:
            for stage in self.rank.stages:
                self._gather(total(self.rank, self.rank.parts(stage)))
            self.t.wait(self.t.record(DP))

    @property
    def _aligned(self) -> bool:
        """Whether pipeline ranks can agree on when a chunk sets off."""
        interleaved = self.rank.s.parallel.schedule == "interleaved"
        return interleaved and self.rank.grid.pp > 1 and len(self.rank.stages) > 1

    @property
    def _gathers_early(self) -> bool:
        """Whether the first chunk is gathered in the optimizer's step."""
        asked = self.o.overlap_param_gather_with_optim_step
        return asked and self.gathers and len(self.rank.stages) > 1

    def _chunk(self, stage: int) -> Bucketed:
        """A stage by its buckets."""
        if stage not in self._chunks:
            self._chunks[stage] = self._cut(stage)
        return self._chunks[stage]

    def _cut(self, stage: int) -> Bucketed:
        parts = self.rank.parts(stage)
        first = self.rank.stage == 0 and stage == min(self.rank.stages)
        if not first or self._gathers_early:
            # Others communicate beside computation whole (DistributedDataParallel: pp_rank > 0, disable_bucketing).
            return whole(self.rank, parts)
        default = max(BUCKET, BUCKET_PER_RANK * self.rank.dp.size)
        return bucketed(self.rank, parts, self.o.bucket_size or default)

    def _gather_chunk(self, stage: int) -> None:
        """Sets off all of a chunk that is not under way."""
        for bucket in range(len(self._chunk(stage).buckets)):
            self._gather_bucket(stage, bucket)

    def _gather_bucket(self, stage: int, bucket: int) -> None:
        """Sets off a bucket's parameters, unless they are under way."""
        if (stage, bucket) not in self.gathered:
            self._gather(self._chunk(stage).buckets[bucket])
            self.gathered[stage, bucket] = self.t.record(DP)

    def _reduce_chunk(self, stage: int) -> None:
        """Sets off a chunk's gradients, bucket by bucket, once."""
        if stage in self.reduced:
            return
        self.reduced.add(stage)
        for bucket in reversed(self._chunk(stage).buckets):
            self._reduce(bucket.reduced)

    def _reduce(self, weights: Weights) -> None:
        op = "reduce_scatter" if self.sharded else "all_reduce"
        self.rank.with_copies(op, weights, self.rank.wide)

    def _gather(self, bucket: Bucket) -> None:
        """Gathers a bucket in one operation."""
        self.rank.with_copies("all_gather", bucket.gathered, 1.0, in_place=True)


def zeroed(elements: int, wide: int) -> Kernel:
    """A buffer of so many gradients is zeroed."""
    return Kernel("fill", (elements,), bytes=float(wide * elements))
