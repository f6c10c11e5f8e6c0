"""One pipeline rank of a Megatron run: microbatches along the schedule, then gradients, then the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from sim.costs.kernel import Kernel
from workloads.megatron.functional import Numbers
from workloads.megatron.further import Further
from workloads.megatron.modules import Embedding, Head, Layer, Shard
from workloads.megatron.moe import PREFIX
from workloads.megatron.sharded import FullySharded
from workloads.megatron.unit import NEVER, Again, Pass, Unit, record
from workloads.parallel.group import Group, transfer
from workloads.schedules.runtime import Batch, Compute, Operation, Recv, Wait
from workloads.tape import Storage, Tape

if TYPE_CHECKING:
    from sim.sections import Scenario
    from workloads.megatron.lower import Grid, Groups
    from workloads.megatron.spread import Spread
    from workloads.model import ModelSpec

DP, PP = "nccl dp", "nccl pp"
# Parameters of a bucket with overlapping reductions (DistributedDataParallelConfig: 40 million, or 1 million times the
# number of data-parallel ranks if that is more).
BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000


class Model:
    """The units of a model, each recorded when first wanted."""

    def __init__(
        self, scenario: Scenario, m: ModelSpec, tp: Group, cp: Group | None, tape: Callable[[], Tape],
        spread: Spread | None = None,
    ) -> None:  # fmt: skip
        s, p = scenario.training, scenario.parallel
        self.m, self.tape, self.options = m, tape, scenario.megatron
        o = scenario.megatron
        wide = 4 if o.main_grads == "fp32" else 2
        numbers = Numbers(s.precision == "fp8", wide, o.gradient_accumulation_fusion, o.tp_comm_overlap, o.fp8_scaling)
        self.recompute = Again(s.recompute == "full", s.recompute == "products", o.recompute_early_stop)
        sequence = p.sequence_parallel and p.tp > 1
        self.shard = Shard(
            tp, sequence, o, numbers, s.micro_batch, s.seq_len // p.cp, s.seq_len, cp, s.recompute == "selective",
            spread,
        )  # fmt: skip
        self._layers: dict[tuple[bool, int], Unit] = {}
        self.inner = (self.shard.rows, s.micro_batch, m.hidden)

    def layer(self, index: int) -> Unit:
        """The unit of a layer: layers of one kind (experts or none, how far they look back) share it."""
        kind = self.m.has_experts(index), self.m.window_of(index)
        if kind not in self._layers:
            self._layers[kind] = record(
                "layer", self.tape, lambda t: Layer(t, self.m, self.shard, *kind), lambda t, net, x: net.forward(t, x),  # type: ignore[attr-defined]
                self.inner, self.recompute,
            )  # fmt: skip
        return self._layers[kind]

    @cached_property
    def further(self) -> Unit:
        """A layer of multi-token prediction, without its pass through the head."""
        return record(
            "further", self.tape, lambda t: Further(t, self.m, self.shard), lambda t, net, x: net.forward(t, x),  # type: ignore[attr-defined]
            self.inner, self.recompute,
        )  # fmt: skip

    @cached_property
    def embedding(self) -> Unit:
        return record(
            "embedding", self.tape, lambda t: Embedding(t, self.m, self.shard), lambda t, net, x: net.forward(t),  # type: ignore[attr-defined]
            (1,), NEVER,
        )  # fmt: skip

    @cached_property
    def head(self) -> Unit:
        return record(
            "head", self.tape, lambda t: Head(t, self.m, self.shard), lambda t, net, x: net.forward(t, x),  # type: ignore[attr-defined]
            self.inner, NEVER,
        )  # fmt: skip

    def whole(self, layers: int) -> int:
        """Parameters of the whole model, without padding."""
        from workloads.model import stage_parameters

        return stage_parameters(self.m, layers, True, True)


class Rank:
    """Records the step of one pipeline rank; ``stages`` maps its stages to their layers."""

    def __init__(
        self, scenario: Scenario, model: Model, grid: Grid, groups: Groups, stage: int, stages: dict[int, range],
        owner: Sequence[int], tape: Tape,
    ) -> None:  # fmt: skip
        self.s, self.model, self.grid, self.groups, self.stage = scenario, model, grid, groups, stage
        self.stages, self.owner, self.tape, self.o = stages, owner, tape, scenario.megatron
        self.dp = groups.of("dp", stage)
        self.edp = groups.of("edp", stage)  # ranks with the same experts
        mode, shards = scenario.parallel.data_parallel, scenario.parallel.fsdp_shards or self.dp.size
        self.fully = mode in ("fsdp", "zero3") and self.dp.size > 1
        self.sharded = mode in ("zero1", "zero2") or self.fully
        self.shards = min(shards, self.dp.size) if self.fully else self.dp.size
        self.events: dict[int, tuple[int, ...]] = {}
        self.stashed: dict[tuple[int, int], Storage] = {}
        self.remaining = dict.fromkeys(stages, 0)
        self.seen: set[int] = set()
        self.run = 0
        self.gathered: dict[tuple[int, int], tuple[int, ...]] = {}
        self.copies = {
            other: groups.transfer_copies(grid.rank(0, stage, 0), grid.rank(0, other, 0)) for other in set(owner)
        }

    # -- what a stage is made of ------------------------------------------------------------------
    def parts(self, stage: int) -> Iterator[tuple[Unit, int]]:
        """Units of a stage in the order of the forward pass, with repetitions."""
        if stage == 0:
            yield self.model.embedding, 1
        for unit, run in groupby(self.model.layer(i) for i in self.stages[stage]):
            yield unit, len(list(run))
        if stage == len(self.owner) - 1:
            for _ in range(self.model.m.mtp_layers):
                yield self.model.further, 1
            yield self.model.head, 1 + self.model.m.mtp_layers

    def weights(self, unit: Unit, times: int) -> tuple[int, int]:
        """Parameters of repetitions of a unit: those that all data-parallel ranks share, and those of experts."""
        times = 1 if unit.name == "head" else times  # which multi-token prediction uses again
        experts = sum(n for name, n in unit.parameters.items() if name.startswith(PREFIX))
        return times * (sum(unit.parameters.values()) - experts), times * experts

    def counted(self, stage: int) -> int:
        """Parameters of a stage on this rank (a tied head is the embedding's copy, or the embedding itself)."""
        total = sum(sum(self.weights(unit, times)) for unit, times in self.parts(stage))
        return total - sum(
            n for unit, _ in self.parts(stage) for name, n in unit.parameters.items() if self._tied_here(name)
        )

    def _tied_here(self, name: str) -> bool:
        return name == "head" and self.model.m.tied_embeddings and 0 in self.stages

    @property
    def parameters(self) -> int:
        return sum(self.counted(stage) for stage in self.stages)

    @property
    def experts(self) -> int:
        """Parameters of experts among them."""
        return sum(self.weights(unit, times)[1] for stage in self.stages for unit, times in self.parts(stage))

    # -- the step ---------------------------------------------------------------------------------
    def record(self, operations: Sequence[Operation], runs: int) -> None:
        """One step in steady state."""
        t = self.tape
        self._resident()
        t.memory.reset_peak()
        t.cpu("step_python")
        self.whole = FullySharded(self, self.shards) if self.fully else None
        if not self.fully:
            self._zero()
            self._gather_parameters()
        computes = [op for op in operations if isinstance(op, Compute)]
        for stage in self.stages:
            self.remaining[stage] = runs * sum(op.stage == stage and op.kind == "B" for op in computes)
        for run in range(runs):
            self.run = run
            self._play(operations)
        self._reduce_rest()
        self._optimize()

    def _play(self, operations: Sequence[Operation]) -> None:
        t = self.tape
        for op in operations:
            if isinstance(op, Compute):
                t.microbatch = op.microbatch
                if op.kind == "F":
                    self._forward(op.stage, op.microbatch)
                else:
                    self._backward(op.stage, op.microbatch)
            elif isinstance(op, Batch):
                self._post(op)
            elif isinstance(op, Wait):
                t.wait(self.events[op.handle])
                if self.o.p2p_sync:
                    t.synchronize()

    def _forward(self, stage: int, microbatch: int) -> None:
        t = self.tape
        t.phase = 0
        t.cpu("pp_action")
        first = stage not in self.seen and bool(self.gathered)
        self.seen.add(stage)
        kept = sum(unit.stash * times for unit, times in self.parts(stage))
        if self.whole is not None:
            self.whole.forward(stage)
            self.stashed[stage, microbatch] = Storage(t.memory, kept, "activations")
            return
        for place, (unit, times) in enumerate(self.parts(stage)):
            for count, bucket in self._pieces(place, unit, times, reverse=False) if first else [(times, None)]:
                if bucket is not None and (stage, bucket) in self.gathered:
                    t.wait(self.gathered[stage, bucket])
                self.emit(unit.forward, count)
        self.stashed[stage, microbatch] = Storage(t.memory, kept, "activations")

    def _backward(self, stage: int, microbatch: int) -> None:
        t = self.tape
        t.phase = 1
        t.cpu("backward_call")
        self.remaining[stage] -= 1
        last = self.remaining[stage] == 0 and self.o.overlap_grad_reduce and self.dp.size > 1
        transient = Storage(t.memory, max((u.transient for u, _ in self.parts(stage)), default=0.0), "activations")
        if self.whole is not None:
            self.whole.backward(stage, self.remaining[stage] == 0)
            del transient, self.stashed[stage, microbatch]
            return
        for place, (unit, times) in reversed(list(enumerate(self.parts(stage)))):
            for count, bucket in self._pieces(place, unit, times, reverse=True) if last else [(times, None)]:
                self.emit(unit.backward, count)
                if bucket is not None:
                    self._reduce(*self.weights(unit, count))
        del transient, self.stashed[stage, microbatch]

    def emit(self, which: Pass, times: int) -> None:
        """Repetitions of a unit as two kernels; the host's time beyond its first launch is spent before the second."""
        t = self.tape
        head, tail = which.chains(times)
        t.host_pending += which.first
        t.launch(head, name=which.name)
        t.host_pending += times * which.host - which.first
        t.launch(tail, name=which.name)

    def _pieces(self, place: int, unit: Unit, times: int, reverse: bool) -> Iterator[tuple[int, int | None]]:
        """Repetitions that fill one bucket each, with the bucket's number; ``place`` is the unit's in its stage."""
        one = max(1, sum(unit.parameters.values()))
        default = max(BUCKET, BUCKET_PER_RANK * self.dp.size)
        per = max(1, min(times, -(-(self.o.bucket_size or default) // one)))
        base = 1000 * place
        sizes = [min(per, times - i) for i in range(0, times, per)]
        numbered = [(size, base + i) for i, size in enumerate(sizes)]
        yield from (reversed(numbered) if reverse else numbered)

    # -- pipeline ---------------------------------------------------------------------------------
    def _post(self, batch: Batch) -> None:
        t, grid = self.tape, self.grid
        rows, b, h = self.model.inner
        split = 1 if self.model.shard.sequence else grid.tp  # each tensor rank sends its part, gathered there by NVLink
        size, parts = rows * b * h * 2.0 / split, []
        here = grid.rank(0, self.stage, 0)
        for op in batch.ops:
            peer = grid.rank(0, op.peer, 0)
            ends = (peer, here) if isinstance(op, Recv) else (here, peer)
            parts.append(transfer(t, *ends, (*op.key, self.run), size, self.copies[op.peer]))
        stream = PP
        if self.o.overlap_p2p_comm and len(self.owner) > grid.pp:  # each peer and direction has its own communicator
            one = batch.ops[0]
            stream = f"{PP} {'from' if isinstance(one, Recv) else 'to'} {one.what}"
        t.wait(t.record(), stream)
        t.cpu("p2p_batch")
        t.cpu("p2p_op", len(batch.ops))
        t.communicate(parts, stream, "send_recv")
        self.events[batch.handle] = t.record(stream)

    # -- data parallelism and the optimizer ---------------------------------------------------------
    @property
    def wide(self) -> int:
        """Bytes of a gradient in the buffer that accumulates and reduces it."""
        return 4 if self.o.main_grads == "fp32" else 2

    def _resident(self) -> None:
        """Parameters, gradient buffer and optimizer states (fp32 parameters and two moments)."""
        memory, n = self.tape.memory, float(self.parameters)
        states = float(self._states())
        self.held = [
            Storage(memory, 0.0 if self.fully else 2 * n, "parameters"),
            Storage(memory, 4 * states if self.fully else self.wide * n, "gradients"),
            Storage(memory, 12 * states, "optimizer"),
        ]

    def _states(self) -> int:
        """Parameters whose optimizer states are here: experts' are spread over the ranks that have the same ones."""
        experts, shared = self.experts, self.parameters - self.experts
        return shared // self.shards + experts // self.edp.size if self.sharded else shared + experts

    def _zero(self) -> None:
        n = self.parameters
        self.tape.launch(Kernel("fill", (n,), bytes=float(self.wide * n)))

    def _reduce(self, parameters: int, experts: int) -> None:
        op = "reduce_scatter" if self.sharded else "all_reduce"
        for group, count in ((self.dp, parameters), (self.edp, experts)):
            if count and group.size > 1:
                group.collective(self.tape, op, float(self.wide * count), DP)

    def _gather(self, parameters: int, experts: int) -> None:
        for group, count in ((self.dp, parameters), (self.edp, experts)):
            if count and group.size > 1:
                group.collective(self.tape, "all_gather", 2.0 * count, DP, in_place=True)

    def _gather_parameters(self) -> None:
        """With overlap, parameters updated by the last step's optimizer arrive bucket by bucket."""
        if not (self.sharded and self.o.overlap_param_gather and self.dp.size > 1):
            return
        for stage in self.stages:
            for place, (unit, times) in enumerate(self.parts(stage)):
                for count, bucket in self._pieces(place, unit, times, reverse=False):
                    self._gather(*self.weights(unit, count))
                    if bucket is not None:
                        self.gathered[stage, bucket] = self.tape.record(DP)

    def _reduce_rest(self) -> None:
        t = self.tape
        t.phase, t.layer = 1, -1
        if self.whole is not None:
            self.whole.finish()
        elif self.dp.size > 1 and not self.o.overlap_grad_reduce:
            self._reduce(self.parameters - self.experts, self.experts)
        if self.dp.size > 1:
            t.wait(t.record(DP))
        m = self.model.m
        if m.tied_embeddings and self.grid.pp > 1 and {0, len(self.owner) - 1} & set(self.stages):
            size = float(self.wide * self.model.embedding.parameters["embedding"])
            self.groups.ends().collective(t, "all_reduce", size, "nccl embedding")
            t.wait(t.record("nccl embedding"))

    def _optimize(self) -> None:
        """Norm of the gradients, Adam on fp32 copies, parameters back to bf16 (and gathered again where sharded)."""
        t, grid = self.tape, self.grid
        t.phase = 2
        n = self._states()
        tensors = sum(times * len(unit.parameters) for stage in self.stages for unit, times in self.parts(stage))
        t.cpu("optimizer_step")
        t.cpu("optimizer_param", tensors)
        t.launch(Kernel("fused", (n,), bytes=float(self.wide * n)))
        if grid.pp * grid.tp > 1:
            group = self.groups.model_parallel()
            group.collective(t, "all_reduce", 4.0, "nccl mp")
            t.synchronize("nccl mp")  # the norm is read by the host: clip_grad_norm
        # Adam reads gradient, parameter and moments and writes the last three in fp32, and the parameter in bf16.
        t.launch(Kernel("fused", (n,), bytes=float((self.wide + 24 + 2) * n)))
        if self.sharded and self.dp.size > 1 and not self.o.overlap_param_gather and not self.fully:
            self._gather(self.parameters - self.experts, self.experts)
            t.wait(t.record(DP))
