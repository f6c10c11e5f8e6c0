"""Who has which stages and layers of a Megatron pipeline, and what each rank issues in a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from prestep.workloads.exchanges import tensor
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import grad_accumulation_of, microbatches_of
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.pipeline import interleaved, one_at_a_time
from prestep.workloads.megatron.pipeline_layout import pipeline_layout
from prestep.workloads.megatron.rank import Place, Rank
from prestep.workloads.parallel.pipeline import layers_of_stages
from prestep.workloads.parallel.transfers import Transfers
from prestep.workloads.schedules import _lockstep, checked, rank_of_stages
from prestep.workloads.schedules.interleaved import grouped
from prestep.workloads.schedules.runtime import (
    STREAM,
    Batch,
    Compute,
    Operation,
    Recv,
    Wait,
    executed,
    in_order,
    operations,
)

ONE_STREAM = ("gpipe", "1f1b")


class StageTransfers(Transfers):
    """Those of a rank of Megatron's, which tensor-parallel ranks may send in parts."""

    def __init__(self, rank: Rank, of_torch: bool, unpacked: float) -> None:
        """``of_torch``: one communicator for all, on which every tensor-parallel rank sends all of an activation.

        ``unpacked``: bytes moved for each byte that is gathered of an activation, beyond the exchange.
        """
        self.rank, self.of_torch, self.unpacked = rank, of_torch, unpacked
        rows, samples, hidden = rank.model.inner
        self.whole = rows * samples * hidden * 2.0  # bytes of an activation
        whole = rank.model.shard.sequence or of_torch
        self.parts = (
            1
            if whole or not rank.o.scatter_gather_tensors_in_pipeline
            else rank.grid.tp
        )
        by_pair = rank.s.pytorch.since(2, 13)
        super().__init__(rank.tape, rank.groups, self.whole / self.parts, by_pair)

    def wait(self, op: Wait) -> None:
        """Computation waits for a batch; in old releases the host does too."""
        super().wait(op)
        if self.rank.o.p2p_sync or self.tape.blocking:
            self.tape.synchronize()

    def gather(self, times: int = 1) -> None:
        """What came from another stage in parts, one to each tensor-parallel rank, is gathered (over NVLink)."""
        t, stream = self.tape, tensor.STREAM
        for _ in range(times if self.parts > 1 else 0):
            self.rank.tp.collective(t, "all_gather", self.whole, stream, in_place=True)
            t.wait(t.record(stream))
            if self.unpacked:
                pass_over(t, int(self.whole / 2), self.unpacked * self.whole)

    def stream(self, batch: Batch) -> str:
        """With overlap each peer and direction has its own communicator, so that none blocks another."""
        if self.of_torch:
            return super().stream(batch)
        schedule = self.rank.s.parallel.schedule
        interleaved = schedule == "interleaved"
        in_chunks = len(self.rank.owner) > self.rank.grid.pp
        shared = schedule in ONE_STREAM or (interleaved and not in_chunks)
        if shared or not self.rank.o.overlap_p2p_comm:
            return STREAM
        one = batch.ops[0]
        way = f"{STREAM} {'from' if isinstance(one, Recv) else 'to'} {one.what}"
        return way if interleaved else f"{way} {one.peer}"


@dataclass(frozen=True)
class Schedule:
    """A step of all pipeline ranks.

    Attributes
    ----------
    owner : tuple of int
        Pipeline rank of every stage.
    issued : sequence
        What each rank issues.
    runs : int
        How often it does in a step.
    """

    owner: tuple[int, ...]
    issued: Sequence[Sequence[Operation]]
    runs: int


def schedule_of(
    scenario: JobSpec, of_torch: bool = False, serial: bool = False
) -> Schedule:
    """The schedule that a scenario asks for.

    ``of_torch``: issued as `torch.distributed.pipelining` does. ``serial``: one transfer after the other.
    """
    p, microbatches = scenario.parallel, microbatches_of(scenario)
    if p.pp == 1:
        return Schedule((0,), [_in_turns(microbatches)], 1)
    runs = grad_accumulation_of(scenario)
    microbatches //= runs
    virtual = p.vpp if p.vpp > 1 else None
    module, chunks = checked(p.schedule, p.pp, microbatches, virtual, few=True)
    owner = rank_of_stages(module.PLACEMENT, p.pp, chunks)
    if of_torch:
        issued = _of_torch(scenario, microbatches, chunks)
    else:
        issued = _issued(scenario, module, microbatches, chunks, owner)
    if serial:
        issued = [one_at_a_time(row) for row in issued]
    return Schedule(owner, issued, runs)


def _of_torch(
    scenario: JobSpec, microbatches: int, chunks: int
) -> Sequence[Sequence[Operation]]:
    """What each rank issues under PyTorch, halves of backward passes as they are run."""
    p = scenario.parallel
    if p.schedule == "interleaved" and chunks > 1 and not scenario.pytorch.since(2, 10):
        return _lockstep.operations(p.pp, microbatches, chunks)
    rows = operations(p.schedule, p.pp, microbatches, chunks)
    return [[one for op in row for one in _run(op)] for row in rows]


def _run(op: Operation) -> Iterator[Operation]:
    """An operation as PyTorch runs it: nothing, for the first half of the first stage's backward pass."""
    if not isinstance(op, Compute):
        yield op
    elif kind := executed(op.stage, op.kind):
        yield replace(op, kind=kind)


def _issued(
    scenario: JobSpec,
    module: ModuleType,
    microbatches: int,
    chunks: int,
    owner: tuple[int, ...],
) -> Sequence[Sequence[Operation]]:
    """What each rank issues; 1F1B as PyTorch does."""
    p = scenario.parallel
    if p.schedule == "1f1b":
        return operations(p.schedule, p.pp, microbatches, chunks, few=True)
    if p.schedule != "interleaved":
        return in_order(module, p.pp, microbatches, chunks, pairs=True)
    overlap = scenario.megatron.overlap_p2p_comm
    width = scenario.megatron.microbatch_group_size_per_vp_stage
    rows = [grouped(rank, p.pp, microbatches, chunks, width) for rank in range(p.pp)]
    return [interleaved(rank, row, owner, overlap) for rank, row in enumerate(rows)]


def _in_turns(microbatches: int) -> list[Operation]:
    """Without a pipeline: each microbatch forward, then backward."""
    return [Compute(0, kind, i) for i in range(microbatches) for kind in "FB"]


def places(scenario: JobSpec, layers: int, owner: tuple[int, ...]) -> list[Place]:
    """The pipeline ranks, each with the layers of its stages; ``owner`` is the rank of every stage."""
    cuts = layers_by_stage(scenario, layers, len(owner))
    return [
        Place(rank, {i: cuts[i] for i, at in enumerate(owner) if at == rank}, owner)
        for rank in range(scenario.parallel.pp)
    ]


def layers_by_stage(scenario: JobSpec, layers: int, stages: int) -> list[range]:
    """Layers of each stage: by a layout of one's own, else evenly.

    An embedding or a head that counts as a layer takes the place of one at its end.
    """
    o = scenario.megatron
    first, last = int(o.account_for_embedding), int(o.account_for_loss)
    if stages == 1:
        return layers_of_stages(layers, 1)
    if o.pipeline_layout is not None:
        return list(pipeline_layout(o.pipeline_layout).layers)
    cuts = layers_of_stages(layers + first + last, stages)
    return [
        range(max(0, cut.start - first), max(0, min(layers, cut.stop - first)))
        for cut in cuts
    ]
