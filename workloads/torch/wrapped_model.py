"""The model of one rank in its parallel wrappers: DDP, FSDP, tensor and expert parallelism, checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import grad_accumulation_of
from prestep.workloads.memory.account import Storage
from prestep.workloads.models.counts import stage_parameters
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.parallel.group import Group
from prestep.workloads.sharding import ddp
from prestep.workloads.torch import aten, trainer
from prestep.workloads.torch.block import BlockParallel
from prestep.workloads.torch.modules import without
from prestep.workloads.torch.run_block import BlockRunner, RunBlock, as_written
from prestep.workloads.torch.simulated_rank import SimulatedRank
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer

with lazily():
    # Of these a model has one kind of network, a job one kind of parallelism.
    from prestep.workloads.exchanges import context, torch_context
    from prestep.workloads.parallel import (
        loss_parallel,
        pipeline,
        tensor,
    )
    from prestep.workloads.sharding import (
        fsdp,
        host,
        module_unit,
        modules,
        redundancy,
        zero,
        zero3,
    )
    from prestep.workloads.torch import (
        amp,
        convnet,
        liger,
        low_rank,
        mlp,
        written_out,
    )


class WrappedModel:
    """The model of one rank, or its stages of a pipeline, with what makes them parallel; `run_block` runs a block.

    Attributes
    ----------
    parameter_count : int
        Parameters of the whole model that this rank stands for.
    parameters : list of Tensor
        Those that are trained.
    averaged : list of Tensor
        Those that all data-parallel ranks share; empty: all.
    ddp : DistributedDataParallel, optional
    partitions, zero3 : optional
        The same as `ddp` where it is DeepSpeed's engine, of any stage and of stage 3.
    sharded : list of ModuleUnit
        FSDP's groups.
    whole_module : ShardedModule, optional
        The whole model under FSDP; None: it is not, or in stages of a pipeline.
    buffers, resident : list
        Tensors that DDP broadcasts before every forward pass, inputs that stay on the device.
    """

    def __init__(
        self,
        job: JobSpec,
        model: ModelSpec,
        tape: Tape,
        rank: SimulatedRank,
        run_block: RunBlock,
    ) -> None:
        self.job, self.spec, self.tape, self.rank = job, model, tape, rank
        self.choices, self.mode = job.pytorch, job.parallel.data_parallel
        self.run_block = BlockRunner(job, tape, run_block)
        if job.parallel.cp > 1:
            self._share_sequences(run_block is not as_written)
        self.sharded: list[module_unit.ModuleUnit] = []
        self.whole_module: modules.ShardedModule | None = None
        self.redundancy: redundancy.ZeroRedundancy | None = None
        self.ddp: ddp.DistributedDataParallel | zero.ZeroPartitions | None = None
        self.partitions: zero.ZeroPartitions | None = None
        self.zero3: zero3.ShardedParameters | None = None
        self.parameter_count = 0
        self.parameters: list[Tensor] = []
        self.averaged: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self.resident: list[Storage] = []
        casts = job.pytorch.master_weights and not self._shards_parameters
        self.autocast = amp.Autocast(tape) if casts else None

    def _share_sequences(self, fused: bool) -> None:
        """Tells attention of the ranks with other parts of a sequence; `fused`: its blocks are compiled."""
        way, degree = self.job.pytorch.rotate_method, self.job.parallel.rings
        group_of = partial(self.rank.context_parallel, ring_degree=degree)
        shares = context.Context.of(group_of, degree)
        self.tape.heads = shares.heads
        if shares.ring is not None:
            self.tape.ring = torch_context.Ring(shares.ring, way, fused)

    @cached_property
    def dp_group(self) -> Group:
        """The ranks that hold the same parameters."""
        return self.rank.data_parallel()

    @cached_property
    def tp_group(self) -> Group:
        """The ranks that hold the other shards of its layers."""
        return self.rank.tensor_parallel()

    @property
    def whole_experts(self) -> bool:
        """Whether tensor parallelism leaves experts whole."""
        return self.job.parallel.etp == 1 and self.job.parallel.tp > 1

    @cached_property
    def ep_group(self) -> Group:
        """The ranks that hold the other experts."""
        ep = self.job.parallel.ep
        return self.rank.expert_parallel(ep, self.whole_experts)

    @cached_property
    def expert_copies(self) -> Group:
        """The ranks that hold the same experts."""
        ep, among = self.job.parallel.ep, self.dp_group.size
        return self.rank.expert_copies(ep, among, self.whole_experts)

    @cached_property
    def host(self) -> host.HostMemory | None:
        """The host's memory of a rank that offloads to it."""
        if self.job.parallel.offload == "none":
            return None
        wide = 4 if self.choices.master_weights else self.tape.itemsize
        pinned = self.job.parallel.offload_pinned
        return host.HostMemory(self.tape, self.rank.itself(), wide, pinned)

    @cached_property
    def sharding(self) -> modules.Sharding:
        """How FSDP shards modules, over all data-parallel ranks or over some of them (HSDP)."""
        parallel, rank = self.job.parallel, self.rank
        shards = parallel.fsdp_shards or self.dp_group.size
        experts = None
        if parallel.ep > 1:
            experts = rank.expert_copies(parallel.ep, shards, self.whole_experts)
        return modules.Sharding(
            self.tape,
            self.choices,
            parallel.reshards,
            rank.shards(shards),
            rank.copies(shards),
            experts,
            self.host,
            reshards_root=parallel.reshard_root,
            splits_root=parallel.root_groups == "split",
        )

    # -- what a rank holds ----------------------------------------------------------------------
    def whole(self) -> Callable[[], Tensor]:
        """Builds the whole model; what runs it forward, to its loss."""
        transformer = self.spec.kind == "transformer"
        return self._transformer() if transformer else self._network()

    def stage(self, index: int, cuts: Sequence[range]) -> pipeline.Stage:
        """A stage with its part of the model; `cuts` has the layers of every stage."""
        first, last = index == 0, index == len(cuts) - 1
        net = Transformer(
            self.tape, self.spec, cuts[index], first, last, self._parallel()
        )
        own = self._adapted(net)
        averaged = self._averaged(net)
        self.averaged += averaged
        self.parameters += own
        self.parameter_count += self._count(net)
        forward = partial(self._forward, net)
        if self._shards_parameters:
            module = self._sharded_module(net)
            return pipeline.Stage(index, net, forward, sharded=module)
        wrapped = self._distributed(averaged, without(own, averaged))
        return pipeline.Stage(index, net, forward, wrapped)

    def _network(self) -> Callable[[], Tensor]:
        """A network that is no transformer; its inputs stay on the device for the whole run."""
        t, m, batch = self.tape, self.spec, self.job.training.micro_batch
        net: mlp.MultilayerPerceptron | convnet.ResNet
        loss: Callable[[Tape, Tensor], Tensor]
        if m.kind == "mlp":
            net, loss = mlp.MultilayerPerceptron(t, m), mlp.mse_loss
            sample = m.sizes[0] + m.sizes[-1]
        else:
            net, loss = convnet.ResNet(t, m), aten.cross_entropy
            self.buffers, sample = net.buffers, 3 * m.image_size**2
        inputs = float(t.itemsize * batch * sample)
        self.resident.append(Storage(t.memory, inputs, "buffers"))
        self.parameter_count, self.parameters = net.parameter_count, net.parameters
        self.ddp = self._data_parallel(net.parameters)
        return self._under_autocast(lambda: loss(t, net.forward(t, batch)))

    def _transformer(self) -> Callable[[], Tensor]:
        t, m = self.tape, self.spec
        training, parts = self.job.training, self.job.parallel.cp
        tokens = (training.micro_batch, training.seq_len // parts)
        net = Transformer(t, m, range(m.layers), True, True, self._parallel())
        self.parameter_count = self._count(net)
        self.parameters = self._adapted(net)
        if self._shards_parameters:
            return self._fully_sharded(net, tokens)
        self.averaged = self._averaged(net)
        experts = without(self.parameters, self.averaged)
        self.ddp = self._data_parallel(self.averaged, experts)
        self.run_block.bucket_cap = self.ddp.cap if self.ddp is not None else None
        return self._under_autocast(
            lambda: t.call_by_name(
                [], lambda: self._losses(net.outputs(t, tokens, self.run_block))
            )
        )

    def _under_autocast(self, forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A forward pass that casts its weights first, where they are in fp32 and no FSDP casts them."""
        casts = self.autocast
        if casts is None:
            return forward

        def run() -> Tensor:
            casts.cast(self.parameters)
            return forward()

        return run

    def _parallel(self) -> BlockParallel:
        spread = self.ep_group if self.job.parallel.ep > 1 else None
        if self.job.parallel.tp > 1:
            sequence = self.job.parallel.sequence_parallel
            whole = self.whole_experts
            vocabulary = self.choices.vocabulary
            beside = sequence and self.choices.async_tensor_parallel
            style = tensor.Asynchronous if beside else tensor.TensorParallel
            return style(self.tp_group, sequence, spread, whole, vocabulary)
        if self.spec.experts and spread is not None:
            return tensor.ExpertParallel(spread)
        return BlockParallel()

    def _adapted(self, net: Transformer) -> list[Tensor]:
        """The parameters that are trained: all, or adapters beside frozen ones."""
        if self.job.adapter.on:
            low_rank.adapt(self.tape, net, self.job.adapter)
        return net.trained

    def _averaged(self, net: Transformer) -> list[Tensor]:
        """Trained parameters that all data-parallel ranks share: not the experts that are spread over them."""
        own = net.trained
        if self.job.parallel.ep == 1:
            return own
        layers = [b.experts for b in net.all_blocks if b.experts is not None]
        spread = [p for layer in layers for p in layer.expert_parameters]
        return without(own, spread)

    def _count(self, net: Transformer) -> int:
        """Parameters of the whole model that this rank's stage stands for (sharded ones counted in full)."""
        layers = [block.index for block in net.blocks]
        return stage_parameters(self.spec, layers, net.first, net.last)

    def _data_parallel(
        self, parameters: list[Tensor], experts: Sequence[Tensor] = ()
    ) -> ddp.DistributedDataParallel | zero.ZeroPartitions | None:
        if not self._partitioned:
            return self._distributed(parameters, experts)
        self.partitions = self._partitions(parameters)
        return self.partitions

    def _distributed(
        self, parameters: list[Tensor], experts: Sequence[Tensor]
    ) -> ddp.DistributedDataParallel | None:
        """DDP over the parameters, if gradients are reduced while backward goes on."""
        if self.mode not in ("ddp", "zero1") or self.dp_group.size == 1:
            return None
        parallel, copies = self.job.parallel, self.expert_copies
        return ddp.wrap(self.tape, parallel, parameters, self.dp_group, experts, copies)

    def _partitions(self, parameters: list[Tensor]) -> zero.ZeroPartitions:
        """DeepSpeed's partition, on the GPU or on its host."""
        t, group, host = self.tape, self.dp_group, self.host
        last, stage = grad_accumulation_of(self.job) - 1, int(self.mode[-1])
        if stage == 3:
            self.zero3 = zero3.ShardedParameters(t, parameters, group, 3, host, last)
            return self.zero3
        return zero.ZeroPartitions(t, parameters, group, stage, host, last)

    @property
    def _partitioned(self) -> bool:
        """Whether DeepSpeed's engine reduces gradients and updates parameters."""
        engine = self.job.training.framework == "deepspeed-eager"
        several = self.dp_group.size > 1 or self.host is not None
        return engine and self.mode != "none" and several

    @property
    def _shards_parameters(self) -> bool:
        if self._partitioned:
            return False
        several = self.dp_group.size > 1 or self.host is not None
        return self.mode in ("fsdp", "zero2", "zero3") and several

    def _fully_sharded(
        self, net: Transformer, tokens: tuple[int, int]
    ) -> Callable[[], Tensor]:
        module = self.whole_module = self._sharded_module(net)
        return lambda: self._losses(
            module.forward(lambda: net.outputs(self.tape, tokens, self.run_block))
        )

    def _sharded_module(self, net: Transformer) -> modules.ShardedModule:
        """A model or a stage under FSDP."""
        module = self.sharding.module(net)
        self.run_block.sharded |= module.blocks
        self.sharded += module.groups
        if self.choices.fp8_param_gather:
            for block, group in module.blocks.items():
                if self.tape.products_of(block.index):
                    group.gather_in_fp8()
        return module

    # -- forward --------------------------------------------------------------------------------
    def _losses(self, logits: list[Tensor]) -> Tensor:
        for _ in range(self.choices.metrics):
            trainer.metric(self.tape, logits[0].elements)
        return trainer.weighed(self.tape, logits, self.loss)

    def loss(self, logits: Tensor) -> Tensor:
        """Cross entropy of the head's output."""
        with self.tape.within("loss"):
            return self._cross_entropy(logits)

    def _cross_entropy(self, logits: Tensor) -> Tensor:
        t = self.tape
        if t.by_liger("fused_linear_cross_entropy"):
            return logits  # it is the loss: the head's product was in it
        wide = self.choices.loss == "fp32" and logits.itemsize < 4
        if self.choices.vocabulary == "split" and self.tp_group.size > 1:
            logits = written_out.widened(t, logits) if wide else logits
            return loss_parallel.cross_entropy(t, logits, self.tp_group)
        if self.choices.loss == "fused":
            return trainer.fused_cross_entropy(t, logits)
        if t.by_liger("cross_entropy"):
            return liger.cross_entropy(t, logits)
        if t.written_out or wide:
            return written_out.cross_entropy(t, logits)
        return aten.cross_entropy(t, logits)

    def _forward(self, net: Transformer, x: Tensor | tuple[int, int]) -> list[Tensor]:
        if self.autocast is not None:
            self.autocast.cast(net.parameters)
        return net.outputs(self.tape, x, self.run_block)

    # -- gradients ------------------------------------------------------------------------------
    def reduce_now(self, reduce: bool) -> None:
        """Whether the next backward pass reduces gradients: that of a step's last microbatch does."""
        if self.whole_module is not None:
            self.whole_module.flow.sync = reduce
        if self.ddp is not None:
            self.ddp.sync = reduce

    def before_forward(self) -> None:
        """DDP's hooks before a forward pass."""
        if self.ddp is None:
            return
        self.ddp.before_forward()
        if self.buffers:
            convnet.broadcast_buffers(
                self.tape, self.buffers, self.dp_group, ddp.STREAM
            )

    def after_backward(self) -> None:
        """What DDP and FSDP do when autograd has returned."""
        if self.ddp is not None:
            self.ddp.after_backward()
        if self.whole_module is not None:
            self.whole_module.after_backward()

    def keep_gradients(self) -> None:
        """Gradients that the step before has zeroed and kept: backward adds to them. DDP's lie in its buckets."""
        for g in self.sharded:
            g.keep_gradients()
        if self.sharded:
            return
        in_buckets = self.ddp is not None and self.ddp.view
        for p in self.parameters:
            p.grad = (
                Tensor(None, p.shape, p.stored)
                if in_buckets
                else self.tape.empty(p.shape, p.stored, "gradients")
            )

    def reduce_gradients(self) -> None:
        """Without overlap: all gradients, one after the other, when backward is done."""
        if self.mode != "ddp-no-overlap" or self.dp_group.size == 1:
            return
        self.tape.phase = 1
        averaged = self.averaged or self.parameters
        average = self.job.parallel.pp == 1
        ddp.reduce_each(self.tape, averaged, self.dp_group, average=average)
        experts, copies = without(self.parameters, averaged), self.expert_copies
        if experts and copies.size > 1:
            ddp.reduce_each(self.tape, experts, copies, average, ddp.EXPERTS)

    def find_scales(self) -> None:
        """Scales of the weights that are gathered in fp8, behind the optimizer: their largest values, over all ranks.

        Source: torchao's precompute_float8_dynamic_scale_for_fsdp.
        """
        t, cast = self.tape, [unit for unit in self.sharded if unit.part.cast]
        if not cast:
            return
        elements = sum(unit.part.cast // unit.part.ranks for unit in cast)
        wide = 4.0 if self.choices.master_weights else 2.0
        t.launch(Kernel("fused_reduction", (elements,), bytes=wide * elements))
        layers = sum(len(p.shape) == 2 for unit in cast for p in unit.parameters)
        cast[0].part.mesh.group.collective(t, "all_reduce", 4.0 * layers, fsdp.REDUCE)
        t.wait(t.record(fsdp.REDUCE))

    def stored_parameters(self) -> list[Tensor]:
        """Tensors the optimizer sees: the parameters, or their shards."""
        if not self.sharded:
            return self.parameters
        return [shard for group in self.sharded for shard in group.shards()]

    def updated_parameters(self) -> list[Tensor]:
        """Tensors that this rank's optimizer updates: all that are stored, or its share (ZeRO 1)."""
        if self.partitions is not None:
            return []  # its partition is its own
        if self.mode != "zero1" or self.dp_group.size == 1:
            return self.stored_parameters()
        if self.redundancy is None:
            place = None if len(self.rank.replicas) == 1 else self.rank.where[0]
            self.redundancy = redundancy.ZeroRedundancy(
                self.tape, self.parameters, self.dp_group, place
            )
        return self.redundancy.own

    def share_updates(self) -> None:
        """With ZeRO 1 every rank gets what the others have updated; DeepSpeed's engine takes its own step."""
        if self.partitions is not None:
            self.partitions.step()
        if self.redundancy is not None:
            self.redundancy.broadcast()

    def zero_gradients(self, stored: list[Tensor]) -> None:
        """Frees gradients, or fills them with zeros."""
        for g in self.sharded:
            g.zero_grad()
        if self.job.training.set_to_none:
            for p in self.parameters:
                p.grad = None
            return
        elements = sum(p.elements for p in stored)
        size = sum(p.stored_size for p in stored)
        self.tape.launch(Kernel("fill", (elements,), bytes=size))  # _foreach_zero_
