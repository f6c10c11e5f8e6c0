"""One rank's training step, recorded on its tape: the model, its parallel wrappers, the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from sim.graph.kernel import Kernel
from workloads import orthogonal
from workloads.job import Job
from workloads.job.layout import grad_accumulation_of, microbatches_of
from workloads.lowered import Layout
from workloads.megatron.unit import Again
from workloads.models.counts import stage_parameters
from workloads.models.model import ModelSpec
from workloads.optimizer import optimizer
from workloads.orthogonal import Matrices, hidden
from workloads.parallel import ddp, flat, fsdp
from workloads.parallel.expert import ExpertParallel
from workloads.parallel.group import Group
from workloads.parallel.pipeline import Pipeline, Stage, layers_of_stages
from workloads.parallel.tensor import TensorParallel
from workloads.precision import precision
from workloads.schedules import checked, rank_of_stages
from workloads.schedules.runtime import operations
from workloads.torch import functional as F
from workloads.torch import trainer
from workloads.torch.convnet import ResNet, broadcast_buffers
from workloads.torch.memory import Storage
from workloads.torch.mlp import MultilayerPerceptron
from workloads.torch.modules import Module
from workloads.torch.tape import Tape, Tensor
from workloads.torch.transformer import Block, BlockParallel, Transformer

# cuBLAS takes 32 MiB of workspace on Hopper for each thread that calls it, and backward has its own thread
# (aten/src/ATen/cuda/CublasHandlePool.cpp).
CUBLAS_WORKSPACE = 2 * 32 * 2.0**20


ADAMW_MOMENTS = 2


class RunBlock(Protocol):
    """Runs a transformer's block; ``bucket_cap`` is the size of DDP's buckets, None without DDP."""

    def __call__(
        self, t: Tape, block: Block, x: Tensor, bucket_cap: float | None
    ) -> Tensor: ...


def _as_written(t: Tape, block: Block, x: Tensor, bucket_cap: float | None) -> Tensor:
    return block.forward(t, x)


def _matrices(p: Tensor) -> Matrices | None:
    return hidden(p.name, p.shape)


class RankStep:
    """Builds the model of one rank and records one steady-state training step of it."""

    def __init__(
        self,
        scenario: Job,
        model: ModelSpec,
        layout: Layout,
        tape: Tape,
        replicas: tuple[tuple[int, ...], ...],
        run_block: RunBlock | None = None,
    ) -> None:
        self.run_block = run_block or _as_written
        self.optimizer = optimizer(scenario.training.optimizer)
        self.s, self.m, self.layout, self.tape, self.replicas = (
            scenario,
            model,
            layout,
            tape,
            replicas,
        )
        self.choices = tape.choices = scenario.pytorch
        tape.products = precision(scenario.training.precision).products
        self.fold = bool(replicas)
        self.d, self.p, self.t = layout.where(tape.rank)
        self.alike = next((d for d in replicas if self.d in d), (self.d,))
        self.mode = scenario.parallel.data_parallel
        par = scenario.parallel
        self.dp_group = self._group(
            "dp", lambda d, t: [layout.rank(x, self.p, t) for x in range(par.dp)]
        )
        self.tp_group = self._group(
            "tp", lambda d, t: [layout.rank(d, self.p, x) for x in range(par.tp)]
        )
        self.ep_group = self._expert_group()
        self.sharded: list[fsdp.FullyShard] = []
        self.root: fsdp.FullyShard | None = None
        self.context = (
            flat.FlatContext() if self.choices.fsdp == "1" else fsdp.Context()
        )
        self.by_block: dict[Block, fsdp.FullyShard] = {}
        self.parameters: list[Tensor] = []
        self.averaged: list[
            Tensor
        ] = []  # those that all data-parallel ranks share; empty: all
        self.ddp: ddp.DistributedDataParallel | None = None
        self.buffers: list[Tensor] = []  # broadcast by DDP before every forward pass
        self.resident: list[Storage] = []  # inputs that stay on the device

    def _group(self, axis: str, ranks: Callable[[int, int], list[int]]) -> Group:
        mine = tuple(ranks(self.d, self.t))
        if not self.fold:
            return Group(axis, mine, [mine], len(mine))
        # Data-parallel groups are the same for every d: of a thousand replicas one need be asked.
        alike = (self.d,) if axis == "dp" else self.alike
        copies = {tuple(ranks(d, t)) for d in alike for t in range(self.layout.tp)}
        return Group(
            axis, mine, sorted(copies), len(self.replicas) if axis == "dp" else 1
        )

    def _expert_group(self) -> Group:
        ep = self.s.parallel.ep
        rank, first = self.layout.rank, self.d // ep * ep
        mine = tuple(rank(first + i, self.p, self.t) for i in range(ep))
        if not self.fold:
            return Group("ep", mine, [mine], ep)
        copies = [
            tuple(rank(g + i, self.p, self.t) for i in range(ep))
            for g in range(0, self.layout.dp, ep)
        ]
        return Group("ep", mine, copies, 1)

    # -- the step -------------------------------------------------------------------------------
    def record(self) -> None:
        """One training step in steady state (buckets rebuilt, optimizer state there)."""
        t = self.tape
        t.cpu("graph_launch")
        workspace = Storage(t.memory, CUBLAS_WORKSPACE, "workspace")
        run = self._pipeline() if self.layout.pp > 1 else self._plain()
        self.optimizer_state = [
            Storage(t.memory, p.elements * self.wide, "optimizer")
            for p in self._stored_parameters()
            for _ in range(self._moments(p))
        ]
        if not self.s.training.set_to_none:
            self._keep_gradients()
        t.memory.reset_peak()
        run()
        if self.mode == "ddp-no-overlap" and self.dp_group.size > 1:
            t.phase = 1
            ddp.reduce_each(
                t,
                self.averaged or self.parameters,
                self.dp_group,
                average=self.layout.pp == 1,
            )
        self._optimize()
        del workspace

    def _keep_gradients(self) -> None:
        """Gradients that the step before has zeroed and kept: backward adds to them. DDP's lie in its buckets."""
        for g in self.sharded:
            g.keep_gradients()
        if self.sharded:
            return
        in_buckets = self.ddp is not None and self.ddp.view
        for p in self.parameters:
            p.grad = (
                Tensor(None, p.shape)
                if in_buckets
                else self.tape.empty(p.shape, owner="gradients")
            )

    def _stored_parameters(self) -> list[Tensor]:
        """Tensors the optimizer sees: the parameters, or their shards."""
        if not self.sharded:
            return self.parameters
        n = self.dp_group.size
        shards = [
            (p.name, Tensor(None, (-(-p.elements // n),), p.itemsize))
            for g in self.sharded
            for p in g.parameters
        ]
        for name, shard in shards:
            shard.name = name
        return [shard for _, shard in shards]

    def _moments(self, p: Tensor) -> int:
        """Values of optimizer state for each element of a parameter."""
        return (
            self.optimizer.moments
            if _matrices(p) or not self.optimizer.iterations
            else ADAMW_MOMENTS
        )

    @property
    def wide(self) -> int:
        """Bytes of a stored parameter."""
        return 4 if self.choices.master_weights else 2

    def _optimize(self) -> None:
        t = self.tape
        t.phase, t.layer = 2, -1
        sharded = bool(self.sharded) or self.s.parallel.tp > 1
        suffix = "_dtensor" if sharded else ""
        stored = self._stored_parameters()
        if self.choices.clip_gradients:
            trainer.clip(t, stored, self.wide)
        iterations = self.optimizer.iterations
        matrices = [p for p in stored if iterations and _matrices(p)]
        rest = [p for p in stored if not (iterations and _matrices(p))]
        self._adamw(rest, suffix)
        orthogonal.update(
            t, filter(None, map(_matrices, matrices)), iterations, self.wide
        )
        self._zero_gradients(stored, suffix)

    def _adamw(self, stored: list[Tensor], suffix: str) -> None:
        """One fused kernel for the embedding and one for the rest, or eight kernels for each tensor."""
        t = self.tape
        t.cpu("optimizer_step" + suffix)
        t.cpu("optimizer_param" + suffix, len(stored))
        for first in range(0, len(stored), 110):  # _foreach_add_ of the step counters
            counters = len(stored[first : first + 110])
            t.launch(Kernel("add", (counters,), bytes=4.0 * len(stored)))
        elements = sum(p.elements for p in stored)
        t.cpu("launch", max(1, round(elements / (320 * 65536))) - 1)
        if not self.choices.fused_optimizer:
            trainer.adam(t, stored, self.wide)
            return
        embedding = [p for p in stored if p.name == "embedding"]
        others = [p for p in stored if p.name != "embedding"]
        for layout, tensors in (("embedding", embedding), ("", others)):
            if tensors:
                # fp32 moves twice the bytes
                count = sum(p.elements for p in tensors) * self.wide // 2
                t.launch(Kernel("adamw", (count, len(tensors)), layout=layout))

    def _zero_gradients(self, stored: list[Tensor], suffix: str) -> None:
        t = self.tape
        t.cpu("zero_grad")
        t.cpu("zero_grad_param" + suffix, len(stored))
        for g in self.sharded:
            g.zero_grad()
        if not self.s.training.set_to_none:
            elements, size = (
                sum(p.elements for p in stored),
                sum(p.size for p in stored),
            )
            t.launch(Kernel("fill", (elements,), bytes=size))  # _foreach_zero_
            return
        for p in self.parameters:
            p.grad = None

    # -- without a pipeline -----------------------------------------------------------------------
    def _plain(self) -> Callable[[], None]:
        forward = self._model()
        accumulation = grad_accumulation_of(self.s)

        def run() -> None:
            for i in range(accumulation):
                self.tape.microbatch = i
                last = i == accumulation - 1
                if self.ddp is not None:
                    self.ddp.sync = last
                self.context.sync = last
                self._forward_backward(forward)

        return run

    def _forward_backward(self, forward: Callable[[], Tensor]) -> None:
        t = self.tape
        t.phase = 0
        t.cpu("step_python")
        if self.ddp is not None:
            self.ddp.before_forward()
            if self.buffers:
                broadcast_buffers(t, self.buffers, self.dp_group, ddp.STREAM)
        loss = forward()
        t.phase = 1
        t.cpu("backward_call")
        t.launch(Kernel("fill", (1,), bytes=2.0))
        t.backward(loss, Tensor(None, loss.shape))
        del loss
        if self.ddp is not None:
            self.ddp.after_backward()
        if self.root is not None:
            t.layer = -1
            self.root.post_backward()
            fsdp.finish_backward(t, self.context)

    def _model(self) -> Callable[[], Tensor]:
        t, m, batch = self.tape, self.m, self.s.training.micro_batch
        if m.kind == "transformer":
            return self._transformer()
        module: Module
        if m.kind == "mlp":
            mlp = MultilayerPerceptron(t, m)
            self.resident.append(
                Storage(t.memory, 2.0 * batch * (m.sizes[0] + m.sizes[-1]), "buffers")
            )
            module, run = mlp, lambda: F.mse_loss(t, mlp.forward(t, batch))
        else:
            net = ResNet(t, m)
            module, run = net, lambda: F.cross_entropy(t, net.forward(t, batch))
            self.buffers = net.buffers
            self.resident.append(
                Storage(t.memory, 2.0 * batch * 3 * m.image_size**2, "buffers")
            )
        self.parameter_count = module.parameter_count
        self.parameters = module.parameters
        self.ddp = self._data_parallel(module.parameters)
        return run

    def _parallel(self) -> BlockParallel:
        if self.s.parallel.tp > 1:
            return TensorParallel(self.tp_group, self.s.parallel.sequence_parallel)
        if self.m.experts and self.s.parallel.ep > 1:
            return ExpertParallel(self.ep_group)
        return BlockParallel()

    def _transformer(self) -> Callable[[], Tensor]:
        t, m = self.tape, self.m
        tokens = (self.s.training.micro_batch, self.s.training.seq_len)
        net = Transformer(t, m, range(m.layers), True, True, self._parallel())
        self._count(net)
        self.parameters = net.parameters
        if self.mode in ("fsdp", "zero3") and self.dp_group.size > 1:
            return self._fully_sharded(net, tokens)
        self.averaged = self._averaged(net)
        self.ddp = self._data_parallel(self.averaged)
        return lambda: self._loss(net.forward(t, tokens, self._run_block))

    def _averaged(self, net: Transformer) -> list[Tensor]:
        """Parameters that all data-parallel ranks share: not the experts that are spread over them."""
        if self.s.parallel.ep == 1:
            return net.parameters
        local = {
            id(p) for b in net.blocks for p in getattr(b.ffn, "expert_parameters", [])
        }
        return [p for p in net.parameters if id(p) not in local]

    def _count(self, net: Transformer) -> None:
        """Parameters of the whole model that this rank's stage stands for (sharded ones counted in full)."""
        self.parameter_count = stage_parameters(
            self.m, len(net.blocks), net.first, net.last
        )

    def _data_parallel(
        self, parameters: list[Tensor]
    ) -> ddp.DistributedDataParallel | None:
        if self.mode != "ddp" or self.dp_group.size == 1:
            return None
        first, cap = self.s.parallel.bucket_caps
        view = self.s.parallel.gradient_as_bucket_view
        return ddp.DistributedDataParallel(
            self.tape, parameters, self.dp_group, cap, first, view
        )

    def _fully_sharded(
        self, net: Transformer, tokens: tuple[int, int]
    ) -> Callable[[], Tensor]:
        t, reshard = self.tape, self.s.parallel.reshard_after_forward

        def shard(parameters: list[Tensor]) -> fsdp.FullyShard:
            group: fsdp.FullyShard
            if isinstance(self.context, flat.FlatContext):
                group = flat.FlatShard(
                    t, parameters, self.dp_group, self.context, reshard, self.choices
                )
            else:
                group = fsdp.FullyShard(
                    t, parameters, self.dp_group, self.context, reshard
                )
            self.sharded.append(group)
            return group

        self.by_block = {b: shard(b.parameters) for b in net.blocks}
        root = self.root = shard(net.root_parameters)

        def run() -> Tensor:
            return self._loss(
                root.forward(None, lambda _: net.forward(t, tokens, self._run_block))
            )

        return run

    def _loss(self, logits: Tensor) -> Tensor:
        t = self.tape
        for _ in range(self.choices.metrics):
            trainer.metric(t, logits.elements)
        return (
            trainer.fused_cross_entropy(t, logits)
            if self.choices.loss == "fused"
            else F.cross_entropy(t, logits)
        )

    def _run_block(self, block: Block, x: Tensor) -> Tensor:
        t = self.tape

        def plain(x: Tensor | None) -> Tensor:
            if x is None:
                raise TypeError("a block needs an input")
            if self._recomputed(block) and t.grad_enabled:
                only = self.s.training.recompute == "products"
                return checkpoint(
                    t,
                    lambda y: self._block_forward(block, y),
                    x,
                    Again(products=True) if only else None,
                )
            return self._block_forward(block, x)

        group = self.by_block.get(block)
        return group.forward(x, plain) if group is not None else plain(x)

    def _forward(self, net: Transformer, x: Tensor | tuple[int, int]) -> Tensor:
        return net.forward(self.tape, x, self._run_block)

    def _recomputed(self, block: Block) -> bool:
        how = self.s.training.recompute
        return how in ("full", "products") or (
            how == "alternate" and block.index % 2 == 0
        )

    def _block_forward(self, block: Block, x: Tensor) -> Tensor:
        faults = self.s.faults
        if faults.slow_per_layer and faults.slow_rank == self.tape.rank:
            self.tape.launch(
                Kernel("spin", (round(faults.slow_per_layer * 1e9),))
            )  # nanoseconds
        return self.run_block(
            self.tape, block, x, self.ddp.cap if self.ddp is not None else None
        )

    # -- with a pipeline ----------------------------------------------------------------------------
    def _pipeline(self) -> Callable[[], None]:
        t, m, par = self.tape, self.m, self.s.parallel
        runs = grad_accumulation_of(self.s)
        microbatches = microbatches_of(self.s) // runs
        module, chunks = checked(
            par.schedule, par.pp, microbatches, par.vpp if par.vpp > 1 else None
        )
        owner = rank_of_stages(module.PLACEMENT, par.pp, chunks)
        cuts = layers_of_stages(m.layers, len(owner))
        stages: dict[int, Stage] = {}
        self.parameter_count = 0
        for index, rank in enumerate(owner):
            if rank == self.p:
                net = Transformer(
                    t,
                    m,
                    cuts[index],
                    index == 0,
                    index == len(owner) - 1,
                    self._parallel(),
                )
                stages[index] = Stage(index, net, partial(self._forward, net))
                averaged = self._averaged(net)
                stages[index].ddp = self._data_parallel(averaged)
                self.averaged += averaged
                self.parameters += net.parameters
                before = self.parameter_count
                self._count(net)
                self.parameter_count += before
        ranks = [self.layout.rank(self.d, p, self.t) for p in range(par.pp)]
        every = (
            [(d, x) for d in self.alike for x in range(par.tp)]
            if self.fold
            else [(self.d, self.t)]
        )
        copies = [
            self.layout.rank(d, 0, x) - self.layout.rank(self.d, 0, self.t)
            for d, x in every
        ]
        shape = (
            self.s.training.micro_batch,
            self.s.training.seq_len // (par.tp if par.sequence_parallel else 1),
            m.hidden,
        )
        pipeline = Pipeline(
            t, self.p, stages, ranks, owner, copies, shape, microbatches, runs
        )
        ops = operations(par.schedule, par.pp, microbatches, chunks)[self.p]

        def run() -> None:
            for _ in range(runs):
                t.cpu("step_python")
                pipeline.run(ops)

        return run


def checkpoint(
    t: Tape,
    forward: Callable[[Tensor], Tensor],
    x: Tensor,
    kept_results: Again | None = None,
) -> Tensor:
    """Activation checkpointing: keeps the input and runs the region again in backward, or what `kept_results` says.

    What is kept instead of being computed again is not counted as memory.
    """
    t.cpu("checkpoint")
    with t.no_grad():
        out = forward(x)
    kept = Tensor(x.storage, x.shape, x.itemsize)
    wants = x.requires_grad

    def backward(g: Tensor) -> list[Tensor | None]:
        nonlocal kept
        t.cpu("checkpoint_backward")
        again, kept = kept, Tensor(None, kept.shape)
        again.requires_grad, again.name = True, "detached"
        t.phase = 0
        early = t.choices is None or t.choices.since(2, 1)
        t.drop = kept_results.dropped() if kept_results is not None else None
        y = t.recompute(lambda: forward(again)) if early else forward(again)
        t.drop = None
        t.phase = 1
        t.backward(y, g)
        return [again.grad if wants else None]

    # Without an input that needs a gradient the region's parameters still do.
    anchor = x if wants else Tensor(None, x.shape)
    anchor.requires_grad = True
    return t.apply(out, [anchor], backward)
