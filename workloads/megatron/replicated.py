"""Data parallelism of a Megatron rank that holds all its parameters: gradients in buckets, summed over the replicas.

With the distributed optimizer (``zero1``) gradients are reduced to shards, and the parameters that each rank
updates are gathered again; both overlap with computation where asked
(Megatron-LM, core/distributed/distributed_data_parallel.py and core/optimizer/distrib_optimizer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sim.graph.kernel import Kernel
from workloads.megatron.passes import Pass
from workloads.megatron.rank import Rank
from workloads.megatron.unit import Unit

DP = "nccl dp"
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
        n = self.rank.parameters
        self.t.launch(Kernel("fill", (n,), bytes=float(self.rank.wide * n)))
        if not (self.sharded and self.o.overlap_param_gather) or self.alone:
            return
        for stage in self.rank.stages:
            for place, (unit, times) in enumerate(self.rank.parts(stage)):
                for count, bucket in self._pieces(place, unit, times, reverse=False):
                    self._gather(*self.rank.weights(unit, count))
                    self.gathered[stage, bucket] = self.t.record(DP)

    def forward(self, stage: int) -> None:
        """A stage's forward pass; the step's first one waits for the parameters of each bucket."""
        first = self.waits(stage)
        self.seen.add(stage)
        for place, (unit, times) in enumerate(self.rank.parts(stage)):
            if not first:
                self.rank.emit(unit.forward, times)
                continue
            for count, bucket in self._pieces(place, unit, times, reverse=False):
                self.t.wait(self.gathered[stage, bucket])
                self.rank.emit(unit.forward, count)

    def backward(self, stage: int, which: Callable[[Unit], Pass], last: bool) -> None:
        """Passes that make gradients of weights, from the last unit on; in the step's last one buckets are reduced."""
        reduces = last and self.o.overlap_grad_reduce and not self.alone
        for place, (unit, times) in reversed(list(enumerate(self.rank.parts(stage)))):
            if not reduces:
                self.rank.emit(which(unit), times)
                continue
            for count, _ in self._pieces(place, unit, times, reverse=True):
                self.rank.emit(which(unit), count)
                self._reduce(*self.rank.weights(unit, count))

    def finish(self) -> None:
        """What was not reduced beside the backward passes; the optimizer waits for it."""
        if self.alone:
            return
        if not self.o.overlap_grad_reduce:
            # The buffer is divided by the number of ranks first (DistributedDataParallel.allreduce_gradients).
            n, experts = self.rank.parameters, self.rank.experts
            self.t.launch(Kernel("fused", (n,), bytes=2.0 * self.rank.wide * n))
            self._reduce(n - experts, experts)
        self.t.wait(self.t.record(DP))

    def updated(self) -> None:
        """The optimizer has run: without overlap its shards are gathered now."""
        if self.sharded and not self.alone and not self.o.overlap_param_gather:
            experts = self.rank.experts
            self._gather(self.rank.parameters - experts, experts)
            self.t.wait(self.t.record(DP))

    def _pieces(
        self, place: int, unit: Unit, times: int, reverse: bool
    ) -> Iterator[tuple[int, int]]:
        """Repetitions that fill one bucket each, with the bucket's number; ``place`` is the unit's in its stage."""
        one = max(1, sum(unit.parameters.values()))
        default = max(BUCKET, BUCKET_PER_RANK * self.rank.dp.size)
        per = max(1, min(times, -(-(self.o.bucket_size or default) // one)))
        numbered = [
            (min(per, times - i), 1000 * place + i // per) for i in range(0, times, per)
        ]
        yield from (reversed(numbered) if reverse else numbered)

    def _reduce(self, parameters: int, experts: int) -> None:
        op = "reduce_scatter" if self.sharded else "all_reduce"
        for group, count in ((self.rank.dp, parameters), (self.rank.edp, experts)):
            if count and group.size > 1:
                group.collective(self.t, op, float(self.rank.wide * count), DP)

    def _gather(self, parameters: int, experts: int) -> None:
        for group, count in ((self.rank.dp, parameters), (self.rank.edp, experts)):
            if count and group.size > 1:
                group.collective(self.t, "all_gather", 2.0 * count, DP, in_place=True)
