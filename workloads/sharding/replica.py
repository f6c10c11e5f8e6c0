"""One rank among those that train the same model: what it holds for them, and what they exchange in a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import grad_accumulation_of
from prestep.workloads.operation import Operand
from prestep.workloads.parallel.group import Group
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.sharding import ddp
from prestep.workloads.torch.modules import without
from prestep.workloads.torch.tape import DTYPES, Tape, Tensor
from prestep.workloads.torch.transformer import Transformer

with lazily():
    # A job has one way.
    from prestep.workloads.sharding import (
        fsdp,
        host,
        module_unit,
        modules,
        policy,
        redundancy,
        zero,
        zero3,
    )
    from prestep.workloads.torch import convnet, updates


class Replica:
    """What shards a rank's model, or averages its gradients.

    Attributes
    ----------
    parameters : list of Tensor
        Those that are trained.
    averaged : list of Tensor
        Those that all data-parallel ranks share; empty: all.
    ddp : DistributedDataParallel, optional
    partitions : ZeroPartitions, optional
        The same as `ddp` where it is DeepSpeed's engine.
    sharded : list of ModuleUnit
        FSDP's units.
    whole_module : ShardedModule, optional
        The whole model under FSDP; None: it is not, or in stages of a pipeline.
    buffers : list of Tensor
        Tensors that DDP broadcasts before every forward pass.
    """

    def __init__(self, job: JobSpec, tape: Tape, groups: Groups) -> None:
        self.job, self.tape, self.groups = job, tape, groups
        self._groups: dict[str, Group] = {}
        self.choices, self.mode = job.pytorch, job.parallel.data_parallel
        self.sharded: list[module_unit.ModuleUnit] = []
        self.whole_module: modules.ShardedModule | None = None
        self.redundancy: redundancy.ZeroRedundancy | None = None
        self.ddp: ddp.DistributedDataParallel | zero.ZeroPartitions | None = None
        self.partitions: zero.ZeroPartitions | None = None
        self.parameters: list[Tensor] = []
        self.averaged: list[Tensor] = []
        self.buffers: list[Tensor] = []

    def group(self, axis: str) -> Group:
        """The group of an axis that this rank is in (`Groups.around`), the same one however often it is asked for."""
        if axis not in self._groups:
            self._groups[axis] = self.groups.around(axis, self.tape.rank)
        return self._groups[axis]

    @property
    def dp_group(self) -> Group:
        """The ranks that hold the same parameters."""
        return self.group("dp")

    @cached_property
    def host(self) -> host.HostMemory | None:
        """The host's memory of a rank that offloads to it."""
        if self.job.parallel.offload == "none":
            return None
        wide = 4 if self.choices.master_weights else self.tape.itemsize
        alone, pinned = (
            self.groups.itself(self.tape.rank),
            self.job.parallel.offload_pinned,
        )
        return host.HostMemory(self.tape, alone, wide, pinned)

    # -- the model's part of it ------------------------------------------------------------------
    def replicate(self, parameters: list[Tensor], experts: Sequence[Tensor]) -> None:
        """Whole parameters, whose gradients DDP or DeepSpeed's engine reduces."""
        if self._partitioned:
            self.ddp = self.partitions = self._partitions(parameters)
        else:
            self.ddp = self.distributed(parameters, experts)

    def distributed(
        self, parameters: list[Tensor], experts: Sequence[Tensor]
    ) -> ddp.DistributedDataParallel | None:
        """DDP over the parameters, if gradients are reduced while backward goes on."""
        if self.mode not in ("ddp", "zero1") or self.dp_group.size == 1:
            return None
        parallel, copies = self.job.parallel, self.group("edp")
        return ddp.wrap(self.tape, parallel, parameters, self.dp_group, experts, copies)

    def _partitions(self, parameters: list[Tensor]) -> zero.ZeroPartitions:
        """DeepSpeed's partition, on the GPU or on its host."""
        t, group, host = self.tape, self.dp_group, self.host
        last, stage = (
            grad_accumulation_of(self.job) - 1,
            {"zero2": 2, "zero3": 3}.get(self.mode or "", 1),
        )
        if stage == 3:
            return zero3.ShardedParameters(t, parameters, group, 3, host, last)
        return zero.ZeroPartitions(t, parameters, group, stage, host, last)

    @property
    def _several(self) -> bool:
        """Whether there is anybody to share with: other ranks, or the host."""
        return self.dp_group.size > 1 or self.host is not None

    @property
    def _partitioned(self) -> bool:
        """Whether DeepSpeed's engine reduces gradients and updates parameters."""
        engine = self.job.training.framework == "deepspeed-eager"
        return engine and self.mode != "none" and self._several

    @property
    def shards_parameters(self) -> bool:
        """Whether each rank keeps a part of every parameter (FSDP)."""
        sharded = self.mode in ("fsdp", "zero2", "zero3") and not self._partitioned
        return sharded and self._several

    @cached_property
    def sharding(self) -> modules.Sharding:
        """How FSDP shards every stage, over all data-parallel ranks or over some of them (HSDP)."""
        parallel, me = self.job.parallel, self.tape.rank
        ranks, same = self.dp_group, self.group("edp")
        shards, experts = parallel.fsdp_shards or ranks.size, None
        if parallel.ep > 1:
            apart = shards * same.size // ranks.size
            experts = policy.Mesh(*self.groups.cut(same, apart, me))
        return modules.Sharding(
            self.tape,
            fsdp.policy(self.choices),
            parallel,
            policy.Mesh(*self.groups.cut(ranks, shards, me)),
            experts,
            self.host,
        )

    def shard(self, net: Transformer) -> modules.ShardedModule:
        """A model or a stage under FSDP."""
        module = self.sharding.module(net)
        self.sharded += module.groups
        if self.choices.fp8_param_gather:
            for block, group in module.blocks.items():
                if self.tape.products_of(block.index):
                    group.gather_in_fp8()
        return module

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
        experts, copies = without(self.parameters, averaged), self.group("edp")
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
            # One that stands for all has the largest share.
            alone = self.groups.apart or len(self.groups.kinds) > 1
            place = self.dp_group.ranks.index(self.tape.rank) if alone else None
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
        grads = tuple(Operand(DTYPES[p.stored], p.shape) for p in stored)
        updates.call(self.tape, "_foreach_zero_.default", grads)
