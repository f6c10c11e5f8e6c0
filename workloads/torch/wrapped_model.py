"""The model of one rank in its parallel wrappers: DDP, FSDP, tensor and expert parallelism, checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from prestep.sim.extras import lazily
from prestep.workloads.job import JobSpec
from prestep.workloads.memory.account import Storage
from prestep.workloads.models.counts import stage_parameters
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.sharding.replica import Replica
from prestep.workloads.torch import aten, trainer
from prestep.workloads.torch.block import BlockParallel
from prestep.workloads.torch.modules import without
from prestep.workloads.torch.run_block import BlockRunner, RunBlock
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer

with lazily():
    # Of these a model has one kind of network, a job one kind of parallelism.
    from prestep.workloads.exchanges import torch_context
    from prestep.workloads.parallel import (
        loss_parallel,
        pipeline,
        tensor,
    )
    from prestep.workloads.sharding import (
        modules,
    )
    from prestep.workloads.torch import (
        amp,
        convnet,
        liger,
        low_rank,
        vision,
        written_out,
    )


class WrappedModel(Replica):
    """The model of one rank, or its stages of a pipeline, with what makes them parallel; `run_block` runs a block.

    Attributes
    ----------
    parameter_count : int
        Parameters of the whole model that this rank stands for.
    resident : list
        Inputs that stay on the device.
    """

    def __init__(
        self,
        job: JobSpec,
        model: ModelSpec,
        tape: Tape,
        groups: Groups,
        run_block: RunBlock | None,
    ) -> None:
        super().__init__(job, tape, groups)
        self.spec = model
        self.run_block = BlockRunner(job, tape, run_block)
        shares = groups.context(tape.rank)
        if shares is not None:
            tape.heads = shares.heads
            if shares.ring is not None:
                way, fused = job.pytorch.rotate_method, run_block is not None
                tape.ring = torch_context.Ring(shares.ring, way, fused)
        self.parameter_count = 0
        self.resident: list[Storage] = []
        casts = job.pytorch.master_weights and not self.shards_parameters
        self.autocast = amp.Autocast(tape) if casts else None

    # -- what a rank holds ----------------------------------------------------------------------
    def whole(self) -> Callable[[], Tensor]:
        """Builds the whole model; what runs it forward, to its loss."""
        transformer = self.spec.kind == "transformer"
        return self._transformer() if transformer else self._network()

    def stage(self, index: int, cuts: Sequence[range]) -> pipeline.Stage:
        """A stage with its part of the model; `cuts` has the layers of every stage."""
        first, last = index == 0, index == len(cuts) - 1
        net = self._net(cuts[index], first, last)
        own = self._adapted(net)
        averaged = self._averaged(net)
        self.averaged += averaged
        self.parameters += own
        self.parameter_count += self._count(net)
        forward = partial(self._forward, net)
        if self.shards_parameters:
            module = self._sharded(net)
            return pipeline.Stage(index, net, forward, sharded=module)
        wrapped = self.distributed(averaged, without(own, averaged))
        return pipeline.Stage(index, net, forward, wrapped)

    def _network(self) -> Callable[[], Tensor]:
        """A network that is no transformer; its inputs stay on the device for the whole run."""
        t, m, batch = self.tape, self.spec, self.job.training.micro_batch
        net: convnet.MultilayerPerceptron | convnet.ResNet
        loss: Callable[[Tape, Tensor], Tensor]
        if m.kind == "mlp":
            net, loss = convnet.MultilayerPerceptron(t, m), convnet.mse_loss
            sample = m.sizes[0] + m.sizes[-1]
        else:
            net, loss = convnet.ResNet(t, m), aten.cross_entropy
            self.buffers, sample = net.buffers, 3 * m.image_size**2
        inputs = float(t.itemsize * batch * sample)
        self.resident.append(Storage(t.memory, inputs, "buffers"))
        self.parameter_count, self.parameters = net.parameter_count, net.parameters
        self.replicate(net.parameters, [])
        return self._under_autocast(lambda: loss(t, net.forward(t, batch)))

    def _transformer(self) -> Callable[[], Tensor]:
        t, m = self.tape, self.spec
        training, parts = self.job.training, self.job.parallel.cp
        tokens = (training.micro_batch, training.seq_len // parts)
        net = self._net(range(m.layers), True, True)
        if m.patch:
            pictures = float(t.itemsize * tokens[0] * 3 * m.image_size**2)
            self.resident.append(Storage(t.memory, pictures, "buffers"))
        self.parameter_count = self._count(net)
        self.parameters = self._adapted(net)
        if self.shards_parameters:
            return self._fully_sharded(net, tokens)
        self.averaged = self._averaged(net)
        experts = without(self.parameters, self.averaged)
        self.replicate(self.averaged, experts)
        self.run_block.bucket_cap = self.ddp.cap if self.ddp is not None else None
        return self._under_autocast(
            lambda: t.call_by_name(
                [], lambda: self._losses(net.outputs(t, tokens, self.run_block))
            )
        )

    def _net(self, layers: range, first: bool, last: bool) -> Transformer:
        """The model, or a stage of it."""
        kind = vision.VisionTransformer if self.spec.patch else Transformer
        return kind(self.tape, self.spec, layers, first, last, self._parallel())

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
        parallel = self.job.parallel
        joined = self.choices.expert_group == "ddp" and parallel.data_parallel == "ddp"
        spread = self.group("dp" if joined else "ep") if parallel.ep > 1 else None
        if self.job.parallel.tp > 1:
            sequence = self.job.parallel.sequence_parallel
            whole = (
                self.job.parallel.etp == 1
            )  # tensor parallelism leaves experts whole
            vocabulary = self.choices.vocabulary
            beside = sequence and self.choices.async_tensor_parallel
            style = tensor.Asynchronous if beside else tensor.TensorParallel
            return style(self.group("tp"), sequence, spread, whole, vocabulary)
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

    def _fully_sharded(
        self, net: Transformer, tokens: tuple[int, int]
    ) -> Callable[[], Tensor]:
        module = self.whole_module = self._sharded(net)
        return lambda: self._losses(
            module.forward(lambda: net.outputs(self.tape, tokens, self.run_block))
        )

    def _sharded(self, net: Transformer) -> modules.ShardedModule:
        module = self.shard(net)
        self.run_block.sharded |= module.blocks
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
        if self.choices.vocabulary == "split" and self.group("tp").size > 1:
            logits = written_out.widened(t, logits) if wide else logits
            return loss_parallel.cross_entropy(t, logits, self.group("tp"))
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
