"""A model, or a stage of a pipeline, under FSDP: a group of shards for each block, one or two for the rest.

In a pipeline these are the rules of torch.distributed.pipelining (stage.py, backward_maybe_with_nosync and
perform_reduce_grad; schedules.py, _PipelineScheduleRuntime): no backward pass reduces or frees anything; when a stage's
last one is done, all of its gradients are reduced, the root's first. Schedules with several stages on a rank gather a
stage whole, before its next use, and free it when three others come first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prestep.workloads.sharding.host import HostMemory
from prestep.workloads.sharding.module_unit import ModuleFlow, ModuleUnit
from prestep.workloads.sharding.policy import Mesh, Policy
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.modules import without
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer

if TYPE_CHECKING:
    from prestep.workloads.job.parallel import Parallel


@dataclass
class ShardedModule:
    """A module under FSDP.

    Attributes
    ----------
    tape : Tape
    flow : ModuleFlow
        What its groups share.
    blocks : dict
        The group of every block.
    inner : dict
        Groups inside blocks (a block's experts).
    root : ModuleUnit, optional
        The group of parameters outside the blocks; None: there are none, or they have groups of their own.
    embedding, head : ModuleUnit, optional
        The groups of the embedding, and of the last norm and the head, where there is none of the root.
    """

    tape: Tape
    flow: ModuleFlow
    blocks: dict[Block, ModuleUnit]
    root: ModuleUnit | None = None
    inner: dict[Block, ModuleUnit] = field(default_factory=dict)
    embedding: ModuleUnit | None = None
    head: ModuleUnit | None = None
    pending: bool = False

    @property
    def groups(self) -> list[ModuleUnit]:
        """All groups in the order of their modules, the root's first."""
        inside = [
            group
            for block, outer in self.blocks.items()
            for group in (outer, self.inner.get(block))
        ]
        ordered = (self.root, self.embedding, *inside, self.head)
        return [group for group in ordered if group is not None]

    @property
    def reduces_itself(self) -> bool:
        """FSDP1, which a pipeline does not know: every backward pass reduces."""
        return not self.flow.policy.staged

    def forward(self, run: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Runs the module's forward pass inside the root's hooks."""
        if self.root is None:
            self.flow.begin(self.tape)
            outputs = run()
        else:
            outputs = []

            def hooked() -> Tensor:
                outputs.extend(run())
                return outputs[-1]  # the gradient of the last one comes first

            self.root.forward_first(hooked)
        # The last gather's buffer (FSDPState._post_forward of the root).
        if self.root is not None:
            self.root.let_through()
        self.flow.arrived = None
        return outputs

    def after_backward(self) -> None:
        """The end of a backward pass: the root's gradients, then the compute stream waits for all.

        A module whose input needs no gradient, such as the first block behind a frozen embedding, is told here that
        its backward pass is done (_fsdp_state.py, _root_post_backward_final_callback).
        """
        for group in self.groups[1:] if self.root is not None else self.groups:
            if group.open:
                group.post_backward()
        self.tape.layer = -1
        if self.root is not None:
            self.root.post_backward()
        self.flow.finish(self.tape)

    # -- as a stage of a pipeline -----------------------------------------------------------------
    def hold(self) -> None:
        """Backward passes reduce and free nothing until `reduce`."""
        self.flow.sync, self.flow.keeps = False, True

    def gather(self) -> None:
        """Gathers all parameters ahead of their use, copied in on the compute stream (FSDPModule.unshard)."""
        for group in self.groups:
            group.gather(self.tape.stream)
        self.pending = True

    def gathered(self) -> None:
        """The compute stream waits for `gather`."""
        if self.pending:
            for group in self.groups:
                group.wait()
        self.pending = False

    def free(self) -> None:
        """Frees all gathered parameters."""
        for group in self.groups:
            group.free()

    def reduce(self) -> None:
        """Reduces the gradients of all groups, and frees their parameters."""
        t, layer = self.tape, self.tape.layer
        self.flow.sync, self.flow.keeps = True, False
        layers = {id(group): block.index for block, group in self.blocks.items()}
        layers |= {id(group): block.index for block, group in self.inner.items()}
        for group in self.groups:
            t.layer = layers.get(id(group), -1)
            group.post_backward()
        t.layer = -1
        self.flow.finish(t)
        t.layer = layer
        self.hold()


@dataclass(frozen=True)
class Sharding:
    """How modules are sharded on one rank.

    Attributes
    ----------
    tape : Tape
    policy : Policy
    parallel : Parallel
        What is freed after forward passes, and whether the embedding is a group apart from the head's.
    mesh : Mesh
        The ranks that hold the other shards, and those that hold the same (HSDP).
    experts : Mesh, optional
        The same for this rank's experts; None: experts are sharded with their block.
    host : HostMemory, optional
        Where shards are kept; None: on the GPU.
    """

    tape: Tape
    policy: Policy
    parallel: Parallel
    mesh: Mesh
    experts: Mesh | None = None
    host: HostMemory | None = None

    def module(self, net: Transformer) -> ShardedModule:
        """Shards a model or a stage: every block, and what is outside of them."""
        frees = self.parallel.reshards
        # FSDP1's SHARD_GRAD_OP keeps parameters while gradients only add up (_should_free_in_backward).
        flow = ModuleFlow(self.policy, self.host, self.policy.flat and not frees)
        blocks, inner = dict[Block, ModuleUnit](), dict[Block, ModuleUnit]()
        for block in net.all_blocks:
            layer = block.experts if self.experts is not None else None
            apart = [] if layer is None else layer.expert_parameters
            if layer is not None:
                inner[block] = layer.sharded = self._group(
                    apart, flow, frees, self.experts
                )
            shared = without(block.parameters, apart)
            blocks[block] = self._group(shared, flow, frees)
        module = ShardedModule(self.tape, flow, blocks, inner=inner)
        self._shard_root(net, module)
        if inner:
            between = [_groups(blocks[b], inner.get(b)) for b in net.all_blocks]
            ends = (_groups(module.embedding), _groups(module.head))
            _prefetch([each for each in (ends[0], *between, ends[1]) if each])
        return module

    def _shard_root(self, net: Transformer, module: ShardedModule) -> None:
        """Shards what is outside of the blocks, as one group or two; a tied embedding is one with the head."""
        lookup, rest = net.embedding_parameters, net.root_parameters
        parallel, flow = self.parallel, module.flow
        apart = parallel.root_groups == "split" and not net.is_tied
        if rest and not apart:
            module.root = self._group(rest, flow, parallel.reshard_root)
            return
        if lookup:
            module.embedding = self._group(lookup, flow, parallel.reshards)
        if last := without(rest, lookup):
            module.head = self._group(last, flow, parallel.reshard_root)
        net.embedding_group, net.head_group = module.embedding, module.head

    def _group(
        self,
        parameters: list[Tensor],
        flow: ModuleFlow,
        reshards: bool,
        mesh: Mesh | None = None,
    ) -> ModuleUnit:
        """Shards the parameters of one module."""
        return ModuleUnit(self.tape, parameters, mesh or self.mesh, flow, reshards)


def _groups(*groups: ModuleUnit | None) -> list[ModuleUnit]:
    """Those that a module has: its own, and that of its experts."""
    return [group for group in groups if group is not None]


def _prefetch(blocks: list[list[ModuleUnit]]) -> None:
    """Blocks with experts of their own gather the next module whole, and backward the one before it.

    torchtitan says so to FSDP (set_modules_to_forward_prefetch), whose own order experts would break.
    """
    for at, (block, *experts) in enumerate(blocks):
        block.ahead = blocks[at + 1] if at + 1 < len(blocks) else []
        block.behind = blocks[at - 1] if at else []
        for inside in experts:
            inside.behind = []
