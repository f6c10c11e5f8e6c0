"""One pipeline rank of a Megatron run: microbatches along the schedule, then gradients, then the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from sim.costs.kernel import Kernel
from workloads.megatron.functional import Numbers
from workloads.megatron.further import Further
from workloads.megatron.modules import Embedding, Head, Layer, Shard
from workloads.megatron.moe import PREFIX
from workloads.megatron.pipeline import Issued, Pair
from workloads.megatron.sharded import FullySharded
from workloads.megatron.split import joint
from workloads.megatron.unit import NEVER, Again, Pass, Unit, record
from workloads.parallel.group import Group, transfer
from workloads.schedules.runtime import Batch, Compute, Recv, Wait
from workloads.tape import Storage, Tape

if TYPE_CHECKING:
    from sim.sections import Scenario
    from workloads.megatron.folding import Kind
    from workloads.megatron.lower import Grid, Groups
    from workloads.megatron.spread import Spread
    from workloads.model import ModelSpec
    from workloads.tape import Tensor
    from workloads.transformer import Module

DP, PP = "nccl dp", "nccl pp"
PAIRED = ("layer", "further")  # units with tokens that travel
ONE_STREAM = ("gpipe", "1f1b")
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
        self.m, self.tape, self.options, self.faults = m, tape, scenario.megatron, scenario.faults
        o = scenario.megatron
        wide = 4 if o.main_grads == "fp32" else 2
        numbers = Numbers(
            s.precision in ("fp8", "nvfp4"), wide, o.gradient_accumulation_fusion, o.tp_comm_overlap,
            o.async_tensor_model_parallel_allreduce, s.precision == "nvfp4", o.fp8_scaling,
        )  # fmt: skip
        self.recompute = Again(s.recompute == "full", s.recompute == "products", o.recompute_early_stop)
        self.loss_scaled = s.precision == "fp16"
        sequence = p.sequence_parallel and p.tp > 1
        self.shard = Shard(
            tp, sequence, o, numbers, s.micro_batch, s.seq_len // p.cp, s.seq_len, cp, s.recompute == "selective",
            spread,
        )  # fmt: skip
        self._layers: dict[tuple[bool, int, bool], Unit] = {}
        self._further: dict[bool, Unit] = {}
        self._joint: dict[tuple[Pass, Pass], Pass] = {}
        self.inner = (self.shard.rows, s.micro_batch, m.hidden)

    def layer(self, index: int, aside: bool = False) -> Unit:
        """The unit of a layer: layers of one kind (experts or none, how far they look back) share it.

        ``aside``: its tokens travel to experts and back beside the computation of another microbatch.
        """
        aside = aside and self.exchanges
        kind = self.m.has_experts(index), self.m.window_of(index)
        if (*kind, aside) not in self._layers:
            self._layers[*kind, aside] = record(
                "layer", self.tape, lambda t: Layer(t, self.m, self._shard(aside), *kind),
                self._run_layer, self.inner, self.recompute,
            )  # fmt: skip
        return self._layers[*kind, aside]

    def _run_layer(self, t: Tape, layer: Module, x: Tensor) -> Tensor:
        if self.faults.slow_per_layer and self.faults.slow_rank == t.rank:
            t.launch(Kernel("spin", (round(self.faults.slow_per_layer * 1e9),)))  # nanoseconds
        return layer.forward(t, x)  # type: ignore[attr-defined, no-any-return]

    @property
    def exchanges(self) -> bool:
        """Whether tokens travel to experts."""
        return self.shard.spread is not None and self.shard.spread.group.size > 1

    def _shard(self, aside: bool) -> Shard:
        if not aside:
            return self.shard
        return replace(self.shard, options=replace(self.options, overlap_moe_expert_parallel_comm=True))

    def further(self, aside: bool = False) -> Unit:
        """A layer of multi-token prediction, without its pass through the head."""
        aside = aside and self.exchanges
        if aside not in self._further:
            self._further[aside] = record(
                "further", self.tape, lambda t: Further(t, self.m, self._shard(aside)),
                lambda t, net, x: net.forward(t, x), self.inner, self.recompute,  # type: ignore[attr-defined]
            )  # fmt: skip
        return self._further[aside]

    def joint(self, forward: Pass, backward: Pass) -> Pass:
        """A forward and a backward pass at once."""
        if (forward, backward) not in self._joint:
            self._joint[forward, backward] = joint(forward, backward)
        return self._joint[forward, backward]

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
        owner: Sequence[int], tape: Tape, kind: Kind,
    ) -> None:  # fmt: skip
        self.kind, self.replica = kind, kind.replicas[0]
        self.s, self.model, self.grid, self.groups, self.stage = scenario, model, grid, groups, stage
        self.stages, self.owner, self.tape, self.o = stages, owner, tape, scenario.megatron
        self.dp = groups.of("dp", stage, 0)
        self.edp = groups.of("edp", stage, 0)  # ranks with the same experts
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
        self.copies: dict[int, list[int]] = {}
        self.put_off: dict[tuple[int, int], Storage] = {}

    # -- what a stage is made of ------------------------------------------------------------------
    def parts(self, stage: int, aside: bool = False) -> Iterator[tuple[Unit, int]]:
        """Units of a stage in the order of the forward pass, with repetitions; ``aside``: see `Model.layer`."""
        if stage == 0:
            yield self.model.embedding, 1
        for unit, run in groupby(self.model.layer(i, aside) for i in self.stages[stage]):
            yield unit, len(list(run))
        if stage == len(self.owner) - 1:
            for _ in range(self.model.m.mtp_layers):
                yield self.model.further(aside), 1
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
    def record(self, operations: Sequence[Issued], runs: int) -> None:
        """One step in steady state."""
        t = self.tape
        self._resident()
        t.memory.reset_peak()
        t.cpu("step_python")
        self.whole = FullySharded(self, self.shards) if self.fully else None
        if not self.fully:
            self._zero()
            self._gather_parameters()
        computes = [op.backward if isinstance(op, Pair) else op for op in operations if isinstance(op, Compute | Pair)]
        for stage in self.stages:
            self.remaining[stage] = runs * sum(op.stage == stage and op.kind in "BW" for op in computes)
        for run in range(runs):
            self.run = run
            self._play(operations)
        self._reduce_rest()
        self._optimize()

    def _play(self, operations: Sequence[Issued]) -> None:
        t = self.tape
        for op in operations:
            if isinstance(op, Compute):
                self._compute(op)
            elif isinstance(op, Pair):
                self._pair(op)
            elif isinstance(op, Batch):
                self._post(op)
            elif isinstance(op, Wait):
                t.wait(self.events[op.handle])
                if self.o.p2p_sync:
                    t.synchronize()

    def _compute(self, op: Compute) -> None:
        self.tape.microbatch = op.microbatch
        run = {"F": self._forward, "B": self._backward, "I": self._input_gradient, "W": self._weight_gradient}
        run[op.kind](op.stage, op.microbatch)

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

    def _pair(self, pair: Pair) -> None:
        """A forward and a backward pass whose tokens travel beside the other's computation, layer by layer."""
        f, b, t = pair.forward, pair.backward, self.tape
        reduces = self.remaining[b.stage] == 1 and self.o.overlap_grad_reduce
        if not self.model.exchanges or b.kind != "B" or reduces or (f.stage not in self.seen and self.gathered):
            self._compute(f)
            self._compute(b)
            return
        self.seen.add(f.stage)
        self.remaining[b.stage] -= 1
        t.phase, t.microbatch = 1, b.microbatch
        t.cpu("pp_action")
        t.cpu("backward_call")
        kept = sum(unit.stash * times for unit, times in self.parts(f.stage, aside=True))
        self.stashed[f.stage, f.microbatch] = Storage(t.memory, kept, "activations")
        transient = Storage(t.memory, self._transient(b.stage), "activations")
        ahead, back = list(self.parts(f.stage, aside=True)), list(self.parts(b.stage, aside=True))[::-1]
        while ahead or back:
            alone = next((row for row in (ahead, back) if row and row[0][0].name not in PAIRED), None)
            alone = alone or (None if ahead and back else ahead or back)
            if alone is not None:
                unit, times = alone.pop(0)
                self.emit(unit.forward if alone is ahead else unit.backward, times)
                continue
            (one, n), (other, m) = ahead[0], back[0]
            times = min(n, m)
            self.emit(self.model.joint(one.forward, other.backward), times)
            ahead[:1], back[:1] = [(one, n - times)] if n > times else [], [(other, m - times)] if m > times else []
        del transient, self.stashed[b.stage, b.microbatch]

    def _transient(self, stage: int) -> float:
        return max((u.transient for u, _ in self.parts(stage)), default=0.0)

    def _input_gradient(self, stage: int, microbatch: int) -> None:
        """The first half of a backward pass: what the products with weights need stays."""
        t = self.tape
        t.phase = 1
        t.cpu("backward_call")
        parts = list(self.parts(stage))
        above = max((u.halves.transient for u, _ in parts), default=0.0)
        transient = Storage(t.memory, above, "activations")
        for unit, times in reversed(parts):
            self.emit(unit.halves.input, times)
        del transient, self.stashed[stage, microbatch]
        held = sum(unit.halves.held * times for unit, times in parts)
        self.put_off[stage, microbatch] = Storage(t.memory, held, "activations")

    def _weight_gradient(self, stage: int, microbatch: int) -> None:
        """The second half."""
        self.tape.phase = 1
        self._back(stage, lambda unit: unit.halves.weights)
        del self.put_off[stage, microbatch]

    def _backward(self, stage: int, microbatch: int) -> None:
        t = self.tape
        t.phase = 1
        t.cpu("backward_call")
        transient = Storage(t.memory, self._transient(stage), "activations")
        self._back(stage, lambda unit: unit.backward)
        del transient, self.stashed[stage, microbatch]

    def _back(self, stage: int, which: Callable[[Unit], Pass]) -> None:
        """Passes that make gradients of weights, from the last unit on; in the step's last one buckets are reduced."""
        self.remaining[stage] -= 1
        last = self.remaining[stage] == 0 and self.o.overlap_grad_reduce and self.dp.size > 1
        if self.whole is not None:
            self.whole.backward(stage, self.remaining[stage] == 0)
            return
        for place, (unit, times) in reversed(list(enumerate(self.parts(stage)))):
            for count, bucket in self._pieces(place, unit, times, reverse=True) if last else [(times, None)]:
                self.emit(which(unit), count)
                if bucket is not None:
                    self._reduce(*self.weights(unit, count))

    def emit(self, which: Pass, times: int) -> None:
        """Repetitions of a unit as two kernels; the host's time beyond its first launch is spent before the second."""
        t = self.tape
        if not which.graph.operations:
            return
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
        # Each tensor rank sends its part, gathered there by NVLink.
        split = 1 if self.model.shard.sequence or not self.o.scatter_gather_tensors_in_pipeline else grid.tp
        size, parts = rows * b * h * 2.0 / split, []
        here = grid.rank(self.replica, self.stage, 0)
        for op in batch.ops:
            peer = grid.rank(self.replica, op.peer, 0)
            ends = (peer, here) if isinstance(op, Recv) else (here, peer)
            if op.peer not in self.copies:
                self.copies[op.peer] = self.groups.transfer_copies(here, peer, self.kind)
            parts.append(transfer(t, *ends, (*op.key, self.run), size, self.copies[op.peer]))
        stream = self._stream(batch)
        t.wait(t.record(), stream)
        t.cpu("p2p_batch")
        t.cpu("p2p_op", len(batch.ops))
        t.communicate(parts, stream, "send_recv")
        self.events[batch.handle] = t.record(stream)

    def _stream(self, batch: Batch) -> str:
        """With overlap each peer and direction has its own communicator, so that none blocks another."""
        schedule, one = self.s.parallel.schedule, batch.ops[0]
        if not self.o.overlap_p2p_comm or schedule in ONE_STREAM or (schedule == "interleaved" and not self._chunked):
            return PP
        way = f"{PP} {'from' if isinstance(one, Recv) else 'to'} {one.what}"
        return way if schedule == "interleaved" else f"{way} {one.peer}"

    @property
    def _chunked(self) -> bool:
        return len(self.owner) > self.grid.pp

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
            # The buffer is divided by the number of ranks first (DistributedDataParallel.allreduce_gradients).
            t.launch(Kernel("fused", (self.parameters,), bytes=2.0 * self.wide * self.parameters))
            self._reduce(self.parameters - self.experts, self.experts)
        if self.dp.size > 1:
            t.wait(t.record(DP))
        m = self.model.m
        apart = self.owner[0] != self.owner[-1]  # in a V the first rank has both
        if m.tied_embeddings and apart and {0, len(self.owner) - 1} & set(self.stages):
            size = float(self.wide * self.model.embedding.parameters["embedding"])
            self.groups.ends(self.kind).collective(t, "all_reduce", size, "nccl embedding")
            t.wait(t.record("nccl embedding"))

    def _optimize(self) -> None:
        """Norm of the gradients, Adam on fp32 copies, parameters back to bf16 (and gathered again where sharded)."""
        t, grid = self.tape, self.grid
        t.phase = 2
        n = self._states()
        tensors = sum(times * len(unit.parameters) for stage in self.stages for unit, times in self.parts(stage))
        t.cpu("optimizer_step")
        t.cpu("optimizer_param", tensors)
        # Gradients are copied to fp32 where they are not, unscaled in fp16 runs, and their norm is found.
        copied = (self.wide + 4) * (self.wide < 4)
        t.launch(Kernel("fused", (n,), bytes=float((copied + 8 * self.model.loss_scaled + 4) * n)))
        if grid.pp * grid.tp > 1:
            group = self.groups.model_parallel(self.replica)
            group.collective(t, "all_reduce", 4.0, "nccl mp")
            t.synchronize("nccl mp")  # the norm is read by the host: clip_grad_norm
        # Adam reads gradient, parameter and moments and writes the last three in fp32, and the parameter in bf16.
        # Megatron clips gradients before it, and reads the fp32 parameters again after it for the copy.
        clipping = 0 if self.fully else 2 * self.wide + 4
        t.launch(Kernel("fused", (n,), bytes=float((clipping + self.wide + 24 + 2) * n)))
        if self.sharded and self.dp.size > 1 and not self.o.overlap_param_gather and not self.fully:
            self._gather(self.parameters - self.experts, self.experts)
            t.wait(t.record(DP))
