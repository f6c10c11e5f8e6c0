"""A model, or a stage of a pipeline, under FSDP: a group of shards for each block, one for the rest.

In a pipeline these are the rules of torch.distributed.pipelining (stage.py, backward_maybe_with_nosync and
perform_reduce_grad; schedules.py, _PipelineScheduleRuntime): no backward pass reduces or frees anything; when a stage's
last one is done, all of its gradients are reduced, the root's first. Schedules with several stages on a rank gather a
stage whole, before its next use, and free it when three others come first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workloads.parallel import fsdp
from workloads.parallel.flat import FlatContext, FlatShard
from workloads.parallel.fsdp import Context, FullyShard
from workloads.parallel.group import Group
from workloads.parallel.offload import HostMemory
from workloads.torch.block import Block
from workloads.torch.tape import Tape, Tensor
from workloads.torch.transformer import Transformer

if TYPE_CHECKING:
    from workloads.job.pytorch import PyTorch


@dataclass
class ShardedModule:
    """A module under FSDP.

    Attributes
    ----------
    tape : Tape
    context : Context
        What its groups share.
    blocks : dict
        The group of every block.
    inner : dict
        Groups inside blocks (a block's experts).
    root : FullyShard, optional
        The group of parameters outside the blocks; None: there are none.
    """

    tape: Tape
    context: Context
    blocks: dict[Block, FullyShard]
    root: FullyShard | None = None
    inner: dict[Block, FullyShard] = field(default_factory=dict)
    pending: bool = False

    @property
    def groups(self) -> list[FullyShard]:
        """All groups in the order of their modules, the root's first."""
        roots = [] if self.root is None else [self.root]
        inside = [
            group
            for block, outer in self.blocks.items()
            for group in (outer, self.inner.get(block))
            if group is not None
        ]
        return roots + inside

    @property
    def reduces_itself(self) -> bool:
        """FSDP1, which a pipeline does not know: every backward pass reduces."""
        return any(isinstance(group, FlatShard) for group in self.groups)

    def forward(self, run: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Runs the module's forward pass inside the root's hooks."""
        if self.root is None:
            self.groups[0].begin()
            return run()
        outputs: list[Tensor] = []

        def hooked(_: Tensor | None) -> Tensor:
            outputs.extend(run())
            return outputs[-1]  # the gradient of the last one comes first

        self.root.forward(None, hooked)
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
        fsdp.finish_backward(self.tape, self.context)

    # -- as a stage of a pipeline -----------------------------------------------------------------
    def hold(self) -> None:
        """Backward passes reduce and free nothing until `reduce`."""
        self.context.sync, self.context.keeps = False, True

    def gather(self) -> None:
        """Gathers all parameters ahead of their use, copied in on the compute stream (FSDPModule.unshard)."""
        for group in self.groups:
            group.unshard(self.tape.stream)
        self.pending = True

    def gathered(self) -> None:
        """The compute stream waits for `gather`."""
        if self.pending:
            for group in self.groups:
                group.wait(forward=False)
        self.pending = False

    def free(self) -> None:
        """Frees all gathered parameters."""
        for group in self.groups:
            group.reshard()

    def reduce(self) -> None:
        """Reduces the gradients of all groups, and frees their parameters."""
        t, layer = self.tape, self.tape.layer
        self.context.sync, self.context.keeps = True, False
        layers = {id(group): block.index for block, group in self.blocks.items()}
        layers |= {id(group): block.index for block, group in self.inner.items()}
        for group in self.groups:
            t.layer = layers.get(id(group), -1)
            group.post_backward()
        t.layer = -1
        fsdp.finish_backward(t, self.context)
        t.layer = layer
        self.hold()


@dataclass(frozen=True)
class Sharding:
    """How modules are sharded on one rank.

    Attributes
    ----------
    tape : Tape
    choices : PyTorch
        The trainer's; which FSDP it is.
    reshards : bool
        Parameters are freed after the forward pass.
    shards : Group
        The ranks that hold the other shards.
    copies : Group, optional
        Those that hold the same shard (HSDP).
    experts : Group, optional
        Those that hold the other shards of this rank's experts; None: experts are sharded with their block.
    host : HostMemory, optional
        Where shards are kept; None: on the GPU.
    """

    tape: Tape
    choices: PyTorch
    reshards: bool
    shards: Group
    copies: Group | None = None
    experts: Group | None = None
    host: HostMemory | None = None

    def module(self, net: Transformer) -> ShardedModule:
        """Shards a model or a stage: every block, and what is outside of them."""
        context = FlatContext() if self.choices.fsdp == "1" else Context()
        context.on_host = self.host is not None
        blocks, inner = dict[Block, FullyShard](), dict[Block, FullyShard]()
        for block in net.all_blocks:
            layer, apart = block.experts, list[Tensor]()
            if self.experts is not None and layer is not None:
                apart = layer.expert_parameters
                inner[block] = layer.sharded = self._group(apart, context, self.experts)
            ids = set(map(id, apart))
            shared = [p for p in block.parameters if id(p) not in ids]
            blocks[block] = self._group(shared, context)
        rest = net.root_parameters
        root = self._group(rest, context) if rest else None
        if inner:
            _prefetch([_groups(blocks[b], inner.get(b)) for b in net.all_blocks])
        return ShardedModule(self.tape, context, blocks, root, inner)

    def _group(
        self,
        parameters: list[Tensor],
        context: Context,
        among: Group | None = None,
    ) -> FullyShard:
        """Shards the parameters of one module."""
        t, reshards, copies = self.tape, self.reshards, self.copies
        if isinstance(context, FlatContext):
            return FlatShard(
                t, parameters, self.shards, context, reshards, self.choices, copies
            )
        group = among or self.shards
        return FullyShard(t, parameters, group, context, reshards, copies, self.host)


def _groups(block: FullyShard, experts: FullyShard | None) -> list[FullyShard]:
    """Of a block, and of its experts if it has some."""
    return [block] if experts is None else [block, experts]


def _prefetch(blocks: list[list[FullyShard]]) -> None:
    """Blocks with experts of their own gather the next block whole, and backward the one before it.

    torchtitan says so to FSDP (set_modules_to_forward_prefetch), whose own order experts would break.
    """
    for at, (block, *experts) in enumerate(blocks):
        block.ahead = blocks[at + 1] if at + 1 < len(blocks) else []
        block.behind = blocks[at - 1] if at else []
        for inside in experts:
            inside.behind = []
