"""Data parallelism of a Megatron rank that holds all its parameters: gradients in buckets, summed over the replicas.

With the distributed optimizer (``zero1``) gradients are reduced to shards, and the parameters that each rank
updates are gathered again; both overlap with computation where asked
(Megatron-LM, core/distributed/distributed_data_parallel.py and core/optimizer/distrib_optimizer.py).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from sim.graph.kernel import Kernel
from workloads.megatron.elementwise import pass_over
from workloads.megatron.passes import Pass
from workloads.megatron.rank import DP, Rank, Weights
from workloads.megatron.unit import Unit

# Parameters of a bucket with overlapping reductions (DistributedDataParallelConfig: 40 million, or 1 million times the
# number of data-parallel ranks if that is more).
BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000


class Replicated:
    """What a rank's passes do with gradients and parameters besides computing."""

    clips = True  # gradients are scaled in place before Adam reads them

    def __init__(self, rank: Rank, sharded: bool) -> None:
        self.rank, self.t, self.o, self.sharded = rank, rank.tape, rank.o, sharded
        self.shards = rank.dp.size if sharded else 1
        self.alone = rank.dp.size == 1
        self.gathered: dict[tuple[int, int], tuple[int, ...]] = {}
        self.seen: set[int] = set()

    def waits(self, stage: int) -> bool:
        """Whether a stage's next forward pass waits for parameters that the last step updated."""
        return bool(self.gathered) and stage not in self.seen

    def held(self, parameters: int, states: int) -> tuple[int, int]:
        """Bytes of parameters and of gradients on this rank."""
        return 2 * parameters, self.rank.wide * parameters

    def begin(self) -> None:
        """Gradients are zeroed; with overlap, updated parameters set off bucket by bucket."""
        rank = self.rank
        self.t.launch(zeroed(rank.parameters, rank.wide))
        if self.alone or not (self.sharded and self.o.overlap_param_gather):
            return
        for stage in rank.stages:
            for place, (unit, times) in enumerate(rank.parts(stage)):
                for count, bucket in self._pieces(place, unit, times):
                    self._gather(rank.weights(unit, count))
                    self.gathered[stage, bucket] = self.t.record(DP)

    def forward(self, stage: int) -> None:
        """A stage's forward pass; the step's first one waits for the parameters of each bucket."""
        rank, first = self.rank, self.waits(stage)
        self.seen.add(stage)
        for place, (unit, times) in enumerate(rank.parts(stage)):
            if not first:
                rank.emit(unit.forward, times)
                continue
            for count, bucket in self._pieces(place, unit, times):
                self.t.wait(self.gathered[stage, bucket])
                rank.emit(unit.forward, count)

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """Passes that make gradients of weights, from the last unit on; in the step's last one buckets are reduced."""
        rank = self.rank
        reduces = last and self.o.overlap_grad_reduce and not self.alone
        for place, (unit, times) in reversed(list(enumerate(rank.parts(stage)))):
            if not reduces:
                rank.emit(which(unit), times)
                continue
            for count, _ in reversed(self._pieces(place, unit, times)):
                rank.emit(which(unit), count)
                self._reduce(rank.weights(unit, count))

    def finish(self) -> None:
        """What was not reduced beside the backward passes; the optimizer waits for it."""
        if self.alone:
            return
        if not self.o.overlap_grad_reduce:
            # The buffer is divided by the number of ranks first (DistributedDataParallel.allreduce_gradients).
            n = self.rank.parameters
            pass_over(self.t, n, 2.0 * self.rank.wide * n)
            self._reduce(self.rank.own)
        self.t.wait(self.t.record(DP))

    def updated(self) -> None:
        """The optimizer has run: without overlap its shards are gathered now."""
        if self.sharded and not self.alone and not self.o.overlap_param_gather:
            self._gather(self.rank.own)
            self.t.wait(self.t.record(DP))

    def _pieces(self, place: int, unit: Unit, times: int) -> list[tuple[int, int]]:
        """Repetitions that fill one bucket each, with the bucket's number; ``place`` is the unit's in its stage."""
        one = max(1, sum(unit.parameters.values()))
        default = max(BUCKET, BUCKET_PER_RANK * self.rank.dp.size)
        full = ceil((self.o.bucket_size or default) / one)
        repetitions = max(1, min(times, full))
        first = 1000 * place
        return [
            (min(repetitions, times - i), first + i // repetitions)
            for i in range(0, times, repetitions)
        ]

    def _reduce(self, weights: Weights) -> None:
        op = "reduce_scatter" if self.sharded else "all_reduce"
        self.rank.with_copies(op, weights, self.rank.wide)

    def _gather(self, weights: Weights) -> None:
        self.rank.with_copies("all_gather", weights, 2.0, in_place=True)


def zeroed(elements: int, wide: int) -> Kernel:
    """A buffer of so many gradients is zeroed."""
    return Kernel("fill", (elements,), bytes=float(wide * elements))
