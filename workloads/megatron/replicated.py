"""Data parallelism of a Megatron rank that holds all its parameters: gradients in buckets, summed over the replicas.

With the distributed optimizer (``zero1``) gradients are reduced to shards, and the parameters that each rank
updates are gathered again; both overlap with computation where asked
(Megatron-LM, core/distributed/distributed_data_parallel.py and core/optimizer/distrib_optimizer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from sim.graph.kernel import Kernel
from workloads.megatron.elementwise import pass_over
from workloads.megatron.passes import Pass
from workloads.megatron.rank import DP, Rank, Weights
from workloads.megatron.unit import Unit

# Parameters of a bucket with overlapping reductions (DistributedDataParallelConfig: 40 million, or 1 million times the
# number of data-parallel ranks if that is more).
BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000
# Units whose parameters may be kept in 8 bits.
QUANTIZED = ("layer", "further")

Part = tuple[Unit, int]  # a unit, and how often it runs


class Replicated:
    """What a rank's passes do with gradients and parameters besides computing."""

    clips = True  # gradients are scaled in place before Adam reads them

    def __init__(self, rank: Rank, sharded: bool) -> None:
        self.rank, self.t, self.o, self.sharded = rank, rank.tape, rank.o, sharded
        self.shards = rank.dp.size if sharded else 1
        self.expert_shards = rank.edp.size if sharded else 1
        self.frozen_shards = 1
        self.alone = rank.dp.size == 1
        self.gathers = sharded and self.o.overlap_param_gather and not self.alone
        self.reduces = self.o.overlap_grad_reduce and not self.alone
        self.gathered: dict[tuple[int, int], tuple[int, ...]] = {}
        self.seen: set[int] = set()
        self.reduced: set[int] = set()

    def waits(self, stage: int) -> bool:
        """Whether a stage's next forward pass waits for parameters that the last step updated."""
        return self.gathers and stage not in self.seen

    def held(self, parameters: int, states: int) -> tuple[int, int]:
        """Bytes of parameters and of gradients on this rank."""
        return 2 * parameters, self.rank.wide * parameters

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
        for bucket, parts in enumerate(self._buckets(stage)):
            if first:
                self._wait_for(stage, bucket)
            for unit, times in parts:
                self.rank.emit(unit.forward, times)

    def _wait_for(self, stage: int, bucket: int) -> None:
        """A bucket's parameters are here; those of the next are on their way, unless chunks are aligned."""
        self._gather_bucket(stage, bucket)
        self.t.wait(self.gathered[stage, bucket])
        if self._aligned and self.o.align_param_gather:
            return
        following = [place for place in self._order if place > (stage, bucket)]
        if following and (following[0][0] == stage or self.o.param_gather_from_start):
            self._gather_bucket(*following[0])

    @property
    def _order(self) -> list[tuple[int, int]]:
        """All buckets of the rank in the order of forward passes, each by its stage and number."""
        return [
            (stage, bucket)
            for stage in sorted(self.rank.stages)
            for bucket in range(len(self._buckets(stage)))
        ]

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """Passes that make gradients of weights, from the last unit on; in the step's last one buckets are reduced."""
        aligned = self._aligned and self.o.align_grad_reduce
        for parts in reversed(self._buckets(stage)):
            for unit, times in reversed(parts):
                self.rank.emit(which(unit), times)
            if last and self.reduces and not aligned:
                self._reduce(self._weights(parts))

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
        self._gather(self._buckets(min(self.rank.stages))[0])

    def updated(self) -> None:
        """The optimizer has run: without overlap its shards are gathered now."""
        if self.sharded and not self.alone and not self.o.overlap_param_gather:
            for stage in self.rank.stages:
                self._gather(list(self.rank.parts(stage)))
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

    def _buckets(self, stage: int) -> list[list[Part]]:
        """Units of a stage in the order of the forward pass, by the buckets that they fill."""
        parts = list(self.rank.parts(stage))
        first = self.rank.stage == 0 and stage == min(self.rank.stages)
        if not first or self._gathers_early:
            # Others communicate beside computation whole (DistributedDataParallel: pp_rank > 0, disable_bucketing).
            return [parts]
        return [
            [(unit, count)] for unit, times in parts for count in self._cut(unit, times)
        ]

    def _cut(self, unit: Unit, times: int) -> list[int]:
        """Repetitions of a unit that fill one bucket each."""
        one = max(1, sum(unit.parameters.values()))
        default = max(BUCKET, BUCKET_PER_RANK * self.rank.dp.size)
        full = ceil((self.o.bucket_size or default) / one)
        repetitions = max(1, min(times, full))
        return [min(repetitions, times - i) for i in range(0, times, repetitions)]

    def _weights(self, parts: Sequence[Part]) -> Weights:
        """Parameters of some units."""
        each = [self.rank.weights(unit, times) for unit, times in parts]
        return Weights(sum(w.shared for w in each), sum(w.experts for w in each))

    def _gather_chunk(self, stage: int) -> None:
        """Sets off all of a chunk that is not under way."""
        for bucket in range(len(self._buckets(stage))):
            self._gather_bucket(stage, bucket)

    def _gather_bucket(self, stage: int, bucket: int) -> None:
        """Sets off a bucket's parameters, unless they are under way."""
        if (stage, bucket) not in self.gathered:
            self._gather(self._buckets(stage)[bucket])
            self.gathered[stage, bucket] = self.t.record(DP)

    def _reduce_chunk(self, stage: int) -> None:
        """Sets off a chunk's gradients, bucket by bucket, once."""
        if stage in self.reduced:
            return
        self.reduced.add(stage)
        for parts in reversed(self._buckets(stage)):
            self._reduce(self._weights(parts))

    def _reduce(self, weights: Weights) -> None:
        op = "reduce_scatter" if self.sharded else "all_reduce"
        self.rank.with_copies(op, weights, self.rank.wide)

    def _gather(self, parts: Sequence[Part]) -> None:
        """Gathers units in one operation: layers in 8 bits where asked, else 16."""
        shared, experts = 0, 0
        for unit, times in parts:
            weights = self.rank.weights(unit, times)
            in_fp8 = self.o.fp8_param_gather and unit.name in QUANTIZED
            wide = 1 if in_fp8 else 2
            shared, experts = (
                shared + wide * weights.shared,
                experts + wide * weights.experts,
            )
        sizes = Weights(shared, experts)
        self.rank.with_copies("all_gather", sizes, 1.0, in_place=True)


def zeroed(elements: int, wide: int) -> Kernel:
    """A buffer of so many gradients is zeroed."""
    return Kernel("fill", (elements,), bytes=float(wide * elements))
