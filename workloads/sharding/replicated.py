"""Layers of which a rank holds all parameters: gradients in buckets, summed over the replicas.

Megatron reduces a buffer, or buckets of it beside backward passes. With the distributed optimizer (``zero1``) gradients
are reduced to shards, and the parameters that each rank updates are gathered again; both overlap with computation where
asked (Megatron-LM, core/distributed/distributed_data_parallel.py and core/optimizer/distrib_optimizer.py).

DeepSpeed's stages 0 and 1 reduce once, behind the last backward pass: gradients are flattened into buckets, each is
reduced and the next is filled when it has come back. Stage 1 leaves every rank its shard, and may reduce beside the
last backward pass (``overlap_comm``). In bf16 with sums in fp32 (``main_grads``) all gradients are summed on every rank
before each updates its shard (runtime/bf16_optimizer.py, ``_bf16_reduce_grads`` of runtime/pipe/engine.py). Stage 2
reduces in every microbatch, as buckets fill, and keeps shards only (runtime/zero/stage_1_and_2.py); DeepSpeed refuses
it in a pipeline. Since 0.12.5 buckets of both are summed on every rank (use_multi_rank_bucket_allreduce), which copies
its shard; before, each slice was reduced to its rank (`deepspeed_version`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, inf

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.host_costs import buckets
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.passes import Pass
from prestep.workloads.megatron.rank import DP, DataParallel, Held, Rank, Weights
from prestep.workloads.megatron.units import Unit
from prestep.workloads.sharding.buckets import BucketPolicy
from prestep.workloads.sharding.host_optimizer import sums_of
from prestep.workloads.sharding.layer_buckets import (
    Bucket,
    Bucketed,
    Stretch,
    bucketed,
    total,
)

# Parameters of a bucket with overlapping reductions (DistributedDataParallelConfig: 40 million, or 1 million times the
# number of data-parallel ranks if that is more).
BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000
BUCKETS = buckets("deepspeed")
# Bytes moved for an element of a gradient that backward has made: PyTorch adds it to the parameter's gradient in 16
# bits; where sums are kept in fp32, that gradient is zeroed before, added to, cast to fp32 in a tensor of its own, and
# this is added to the sum (BF16_Optimizer.clear_lp_grads, update_hp_grads), in every microbatch.
ADDED, ADDED_WIDE = 6.0, 2.0 + 6.0 + 6.0 + 12.0
COMPUTED = 2  # bytes of a gradient as backward makes it


def added_by_buckets(scenario: JobSpec) -> float:
    """Bytes moved for an element of a weight's gradient beyond its GEMM."""
    return ADDED_WIDE if scenario.megatron.main_grads == "fp32" else ADDED


def megatron(rank: Rank, sharded: bool) -> Replicated:
    """Megatron's buffer of gradients: whole, or beside the last backward pass in buckets."""
    default = max(BUCKET, BUCKET_PER_RANK * rank.dp.size)
    policy = BucketPolicy(
        rank.o.bucket_size or default,
        beside="last" if rank.o.overlap_grad_reduce else "none",
        sent=rank.wide,
        scatters=sharded,
    )
    return Replicated(rank, sharded, policy)


def deepspeed(rank: Rank, stage: int, sums: bool) -> Replicated:
    """DeepSpeed's buckets in its stages 0 to 2; ``sums``: those of stages 1 and 2 are summed on every rank."""
    o = rank.o
    # The optimizer that keeps sums in fp32 has no hooks, and no shards of gradients.
    wide = stage < 2 and rank.s.training.precision == "bf16" and o.main_grads == "fp32"
    hooks = stage == 1 and o.overlap_grad_reduce and not wide
    size = o.bucket_size or BUCKETS["reduce"]
    policy = BucketPolicy(
        size,
        fits=True,
        beside="every" if stage == 2 else "last" if hooks else "none",
        flat=size,
        sent=COMPUTED if stage == 2 else rank.wide,
        scatters=stage > 0 and not (wide or sums),
        packs=True,
        keeps_all=stage == 0 or wide,
        waits=not (hooks or (stage == 2 and o.overlap_grad_reduce)),
    )
    return (Partitioned if stage == 2 else Replicated)(rank, stage > 0, policy)


class Replicated(DataParallel):
    """What a rank's passes do with gradients and parameters besides computing."""

    clips = True  # gradients are scaled in place before Adam reads them

    def __init__(self, rank: Rank, sharded: bool, policy: BucketPolicy) -> None:
        self.rank, self.t, self.o, self.sharded = rank, rank.tape, rank.o, sharded
        self.policy = policy
        self.shards = rank.dp.size if sharded else 1
        self.expert_shards = rank.edp.size if sharded else 1
        self.frozen_shards = self.frozen_expert_shards = 1
        self.alone = rank.dp.size == 1
        overlaps = self.o.overlap_param_gather and not policy.packs
        self.gathers = sharded and overlaps and not self.alone
        self.reduces = policy.beside != "none" and not self.alone
        self.gathered: dict[tuple[int, int], tuple[int, ...]] = {}
        self.here: set[tuple[int, int]] = set()
        self._chunks: dict[tuple[int, bool], Bucketed] = {}
        self.seen: set[int] = set()
        self.reduced: set[int] = set()

    def waits(self, stage: int) -> bool:
        """Whether a stage's next forward pass waits for parameters that the last step updated."""
        return self.gathers and stage not in self.seen

    def held(self, parameters: int, states: int) -> Held:
        """Bytes of parameters and of gradients on this rank."""
        return Held(2 * parameters, self.rank.wide * parameters)

    @property
    def updated_tensors(self) -> float:
        """Tensors of which the optimizer updates a part here: a rank has an equal share of each bucket's length."""
        buckets = sum(len(self._chunk(stage).buckets) for stage in self.rank.stages)
        return buckets + max(0, self.rank.tensors - buckets) / self.shards

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
            self.rank.emit(unit.forward.between(begin, end), 1)

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
        """Passes that make gradients of weights, from the last unit on; buckets that are full are reduced."""
        aligned = self._aligned and self.o.align_grad_reduce
        reduces = self.reduces and (last or self.policy.beside == "every")
        chunk = self._chunk(stage)
        for stretch in reversed(chunk.stretches):
            unit, times, back = stretch.unit, stretch.times, which(stretch.unit)
            sets_off = reduces and not aligned
            within = stretch.within and not self.policy.packs
            if sets_off and within and back is unit.backward:
                self._reduce_within(chunk, stretch)
                continue
            self.rank.emit(back, times)
            if sets_off and self.policy.packs:
                self.t.cpu("zero_param", times * len(unit.parameters))
            for number in stretch.completes if sets_off else ():
                self._reduce(chunk.buckets[number].reduced)

    def _reduce_within(self, chunk: Bucketed, stretch: Stretch) -> None:
        """A stretch's backward pass; in its last run buckets are reduced as soon as they are full."""
        unit, begin = stretch.unit, 0
        if stretch.times > 1:
            self.rank.emit(unit.backward, stretch.times - 1)
        for number, end in zip(stretch.completes, stretch.within, strict=True):
            self.rank.emit(unit.backward.between(begin, end), 1)
            self._reduce(chunk.buckets[number].reduced)
            begin = end
        self.rank.emit(unit.backward.between(begin, None), 1)

    def after(self, stage: int) -> None:
        """A backward pass has ended: aligned reductions of a chunk that is through set off."""
        if not (self._aligned and self.o.align_grad_reduce and self.reduces):
            return
        chunk = self.rank.alignment.reductions.get((stage, self.t.microbatch))
        if chunk is not None and self.rank.remaining[chunk] == 0:
            self._reduce_chunk(chunk)

    def finish(self) -> None:
        """What was not reduced beside the backward passes; the optimizer waits for it."""
        if self.alone and not self.reduces:
            return
        if not self.reduces:
            if not self.policy.packs:
                # The buffer is divided by the number of ranks first (DistributedDataParallel.allreduce_gradients).
                n = self.rank.parameters
                pass_over(self.t, n, 2.0 * self.rank.wide * n)
            for weights in self._flat(self.policy.flat):
                self._reduce(weights)
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
        """The optimizer has run: without overlap its shards are gathered now, by chunks or in buckets."""
        if not self.sharded or self.alone or self.gathers:
            return
        if not self.policy.packs:
            for stage in self.rank.stages:
                self._gather(total(self.rank, self.rank.parts(stage)))
            self.t.wait(self.t.record(DP))
            return
        for weights in self._flat(BUCKETS["allgather"]):
            self.t.cpu("zero_bucket")
            self._gather(Bucket(gathered=weights * 2))
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
        key = stage, self.rank.accompanied
        if key not in self._chunks:
            self._chunks[key] = self._cut(stage)
        return self._chunks[key]

    def _cut(self, stage: int) -> Bucketed:
        parts = self.rank.parts(stage)
        first = self.rank.stage == 0 and stage == min(self.rank.stages)
        if not first or self._gathers_early:
            # Others communicate beside computation whole (DistributedDataParallel: pp_rank > 0, disable_bucketing).
            return bucketed(self.rank, parts, replace(self.policy, size=inf))
        return bucketed(self.rank, parts, self.policy)

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

    def _flat(self, size: float) -> Iterator[Weights]:
        """All parameters of this rank at once, or in as many elements; at most as many buckets as tensors.

        Shared ones come first.
        """
        shared, experts = self.rank.own.shared, self.rank.own.experts
        mean = ceil((shared + experts) / max(1, self.rank.tensors))
        size = max(int(size), mean) if size else shared + experts
        while shared + experts > 0:
            first = min(size, shared)
            bucket = Weights(first, min(size - first, experts))
            yield bucket
            shared, experts = shared - bucket.shared, experts - bucket.experts

    def _reduce(self, bucket: Weights) -> None:
        """Reduces a bucket, into which gradients are copied before where it is not their own memory."""
        t, n, policy = self.t, bucket.total, self.policy
        if policy.packs:
            t.cpu("zero_bucket")
            pass_over(t, n, 2.0 * policy.sent * n)
        if not policy.packs and self.o.check_for_nan_in_grad:
            # The host reads the norm of the bucket before it goes on (_ParamAndGradBucketGroup.check_grads).
            pass_over(t, n, float(policy.sent * n))
            t.synchronize()
        op = "reduce_scatter" if policy.scatters else "all_reduce"
        self.rank.with_copies(op, bucket, policy.sent)
        if policy.waits:
            t.wait(t.record(DP))
        if policy.packs:
            self._keep(n)

    def _keep(self, n: int) -> None:
        """What was reduced of so many gradients is copied back; divided where it is copied."""
        policy = self.policy
        kept = 2.0 * policy.sent * n / (1 if policy.keeps_all else self.shards)
        pass_over(self.t, n, kept, None if policy.waits else DP)

    def _gather(self, bucket: Bucket) -> None:
        """Gathers a bucket in one operation."""
        self.rank.with_copies("all_gather", bucket.gathered, 1.0, in_place=True)


class Partitioned(Replicated):
    """DeepSpeed's stage 2: every microbatch's gradients are reduced to shards, which add up; no rank has all of them.

    With the optimizer in the host's memory they add up there.
    """

    def __init__(self, rank: Rank, sharded: bool, policy: BucketPolicy) -> None:
        super().__init__(rank, sharded, policy)
        self.on_host = sums_of(rank, DP)
        self.offloads = self.on_host is not None
        self.reduces = not self.alone or self.offloads
        self.rounds = microbatches_of(rank.s)

    def held(self, parameters: int, states: int) -> Held:
        """Bytes of parameters, the shard of gradients that adds up, and the bucket being filled (or two)."""
        if not self.reduces:
            return super().held(parameters, states)
        filling = min(int(self.policy.size), parameters)
        gradients = 0 if self.offloads else self.rank.wide * states
        if self.on_host is not None:
            self.on_host.keep(states, several=self.rounds > 1)
        buffers = (1 if self.policy.waits else 2) * COMPUTED * filling
        return Held(2 * parameters, gradients, buffers)

    def begin(self) -> None:
        """The shard is zeroed, where it is here."""
        if not self.offloads:
            n = self.rank.parameters // self.shards
            self.t.launch(zeroed(n, self.rank.wide))

    def _keep(self, n: int) -> None:
        """Each rank adds up its shard, on the stream that reduced: the next bucket may be on its way."""
        t, shard = self.t, n // self.shards
        if self.on_host is not None:
            first, last = t.microbatch == 0, t.microbatch == self.rounds - 1
            self.on_host.add(shard, first, last)
        else:
            pass_over(t, shard, float((2 + 2 * self.rank.wide) * shard), DP)


def zeroed(elements: int, wide: int) -> Kernel:
    """A buffer of so many gradients is zeroed."""
    return Kernel("aten fill", (elements,), bytes=float(wide * elements))
