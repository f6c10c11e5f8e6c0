"""Data parallelism as DeepSpeed does it around Megatron's layers: ZeRO stages 0 to 2.

Nothing overlaps unless asked (``overlap_comm`` is off by default): gradients are flattened into buckets, each is
reduced and the next is filled when it has come back. Stages 0 and 1 reduce once, after the last backward pass, and
stage 1 leaves every rank its shard. In bf16 with sums in fp32 (``main_grads``) all of them are summed on every rank
before each updates its shard (runtime/bf16_optimizer.py, ``_bf16_reduce_grads`` of runtime/pipe/engine.py). Stage 2
reduces in every microbatch, as buckets fill, and keeps shards only (runtime/zero/stage_1_and_2.py); DeepSpeed refuses
it in a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

from prestep.workloads.host_costs import buckets
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import microbatches_of
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.host_optimizer import sums_of
from prestep.workloads.megatron.passes import Pass
from prestep.workloads.megatron.rank import DP, Held, Rank, Weights
from prestep.workloads.megatron.replicated import Replicated, zeroed
from prestep.workloads.megatron.units import Unit

BUCKETS = buckets("deepspeed")
# Bytes moved for an element of a gradient that backward has made: PyTorch adds it to the parameter's gradient in 16
# bits; where sums are kept in fp32, that gradient is zeroed before, added to, cast to fp32 in a tensor of its own, and
# this is added to the sum (BF16_Optimizer.clear_lp_grads, update_hp_grads), in every microbatch.
ADDED, ADDED_WIDE = 6.0, 2.0 + 6.0 + 6.0 + 12.0


def added_by_buckets(scenario: JobSpec) -> float:
    """Bytes moved for an element of a weight's gradient beyond its GEMM."""
    return ADDED_WIDE if scenario.megatron.main_grads == "fp32" else ADDED


class Zero(Replicated):
    """Stages 0 (``sharded`` false) and 1: gradients are reduced bucket by bucket when all are there."""

    def __init__(self, rank: Rank, sharded: bool) -> None:
        super().__init__(rank, sharded)
        self.bf16 = rank.s.training.precision == "bf16" and rank.o.main_grads == "fp32"
        self.bucket = self.o.bucket_size or BUCKETS["reduce"]

    def finish(self) -> None:
        """Buckets are flattened, reduced and copied back one after the other; divided where they are copied."""
        if self.alone:
            return
        for bucket in self._filled(self.bucket):
            self._send(bucket, self.rank.wide)
        self.t.wait(self.t.record(DP))

    def _send(self, bucket: Weights, wide: int) -> None:
        """One bucket: into a flat buffer, reduced, and out of it."""
        t, n = self.t, bucket.total
        whole = not self.sharded or self.bf16
        copied = 2.0 * wide * n
        t.cpu("zero_bucket")
        pass_over(t, n, copied)
        op = "all_reduce" if whole else "reduce_scatter"
        self.rank.with_copies(op, bucket, wide)
        t.wait(t.record(DP))
        pass_over(t, n, copied / (1 if whole else self.shards))

    def updated(self) -> None:
        """Updated parameters are gathered in buckets."""
        if not self.sharded or self.alone:
            return
        for bucket in self._filled(BUCKETS["allgather"]):
            self.t.cpu("zero_bucket")
            self.rank.with_copies("all_gather", bucket, 2.0, in_place=True)
            self.t.wait(self.t.record(DP))

    def _filled(self, size: int) -> Iterator[Weights]:
        """All parameters of this rank in buckets of `size` elements, at most as many as tensors: these stay whole."""
        own = self.rank.own
        mean = ceil(own.total / max(1, self.rank.tensors))
        return _buckets(own, max(size, mean))


class Zero2(Zero):
    """Stage 2: every microbatch's gradients are reduced to shards, which add up; no rank has all of them.

    With the optimizer in the host's memory they add up there.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, sharded=True)
        self.bf16 = False  # what is reduced is what backward made
        self.filled = Weights(0, 0)
        self.on_host = sums_of(rank, DP)
        self.offloads = self.on_host is not None
        self.fills = not self.alone or self.offloads
        self.rounds = microbatches_of(rank.s)

    def held(self, parameters: int, states: int) -> Held:
        """Bytes of parameters, the shard of gradients that adds up, and the bucket being filled (or two)."""
        if not self.fills:
            return super().held(parameters, states)
        buffers = 2 if self.o.overlap_grad_reduce else 1
        filling = min(self.bucket, parameters)
        gradients = 0 if self.offloads else self.rank.wide * states
        if self.on_host is not None:
            self.on_host.keep(states, several=self.rounds > 1)
        return Held(2 * parameters, gradients, 2 * buffers * filling)

    def begin(self) -> None:
        """The shard is zeroed, where it is here."""
        if self.offloads:
            return
        n = self.rank.parameters if self.alone else self.rank.parameters // self.shards
        self.t.launch(zeroed(n, self.rank.wide))

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """A backward pass; a bucket that is full is reduced before the next unit, or beside it (overlap_comm)."""
        if not self.fills:
            super().backward(stage, which, last)
            return
        for unit, times in reversed(list(self.rank.parts(stage))):
            for count in self._repetitions(unit, times):
                self.rank.emit(which(unit), count)
                self._fill(unit, count)
        self._flush()

    def finish(self) -> None:
        """All is reduced already."""
        if self.fills:
            self.t.wait(self.t.record(DP))

    def _repetitions(self, unit: Unit, times: int) -> Iterator[int]:
        """Repetitions of a unit until its gradients fill a bucket."""
        one = max(1, sum(unit.parameters.values()))
        per = max(1, min(times, ceil(self.bucket / one)))
        yield from (min(per, times - i) for i in range(0, times, per))

    def _fill(self, unit: Unit, times: int) -> None:
        self.t.cpu("zero_param", times * len(unit.parameters))
        made, filled = self.rank.weights(unit, times), self.filled
        shared, experts = filled.shared + made.shared, filled.experts + made.experts
        self.filled = Weights(shared, experts)
        if self.filled.total >= self.bucket:
            self._flush()

    def _flush(self) -> None:
        """The bucket's gradients, laid side by side by backward, are reduced, and each rank adds up its shard."""
        bucket, t = self.filled, self.t
        if not bucket.total:
            return
        self.filled = Weights(0, 0)
        t.cpu("zero_bucket")
        pass_over(t, bucket.total, 4.0 * bucket.total)
        self.rank.with_copies("reduce_scatter", bucket, 2.0)
        if not self.o.overlap_grad_reduce:
            t.wait(t.record(DP))
        shard = bucket.total // self.shards
        # Added on the stream that reduced: the next bucket may be on its way.
        if self.on_host is not None:
            first, last = t.microbatch == 0, t.microbatch == self.rounds - 1
            self.on_host.add(shard, first, last)
        else:
            pass_over(t, shard, float((2 + 2 * self.rank.wide) * shard), DP)


def _buckets(weights: Weights, size: int) -> Iterator[Weights]:
    """Shared parameters and experts' of buckets of ``size`` elements, filled in this order."""
    shared, experts = weights
    while shared + experts > 0:
        first = min(size, shared)
        bucket = Weights(first, min(size - first, experts))
        yield bucket
        shared, experts = shared - bucket.shared, experts - bucket.experts
