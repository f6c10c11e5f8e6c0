"""Runs the blocks of a transformer: gathered by FSDP, checkpointed, slowed down by a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job import JobSpec
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.sharding.module_unit import ModuleUnit
    from prestep.workloads.torch import activation_checkpoint, again


#: Runs a transformer's block under ``torch.compile``: the tape, the block, its input, the size of DDP's buckets (None
#: without DDP), and what of it runs again in backward.
RunBlock = Callable[[Tape, Block, Tensor, "float | None", "again.Again | None"], Tensor]


@dataclass
class BlockRunner:
    """Runs the blocks of one rank.

    Attributes
    ----------
    job : JobSpec
    tape : Tape
    run : RunBlock, optional
        Runs a block whose parameters are there; None: its own operators do.
    sharded : dict
        FSDP's group of every block that has one.
    bucket_cap : float, optional
        Size of DDP's buckets, bytes.
    """

    job: JobSpec
    tape: Tape
    run: RunBlock | None
    sharded: dict[Block, ModuleUnit] = field(default_factory=dict)
    bucket_cap: float | None = None

    def __call__(self, block: Block, x: Tensor) -> Tensor:
        """The block's output; its parameters are gathered for it where they are sharded."""
        run, group = partial(self._forward, block), self.sharded.get(block)
        return run(x) if group is None else group.forward(x, run)

    def _forward(self, block: Block, x: Tensor) -> Tensor:
        """Runs a block, checkpointed if it is to be computed again in backward: a compiled one sees to it itself."""
        rule = self._again(block)
        if rule is None or self.run is not None:
            return self._plain(block, rule, x)
        kept_results = rule if rule.products else None
        plain = partial(self._plain, block, None)
        return activation_checkpoint.checkpoint(self.tape, plain, x, kept_results)

    def _again(self, block: Block) -> again.Again | None:
        """What of a block is computed again in backward."""
        how = self.job.training.recompute
        every_other = how == "alternate" and block.index % 2 == 0
        if not self.tape.grad_enabled:
            return None
        if how == "products":
            attention = self.job.pytorch.recompute_attention
            return again.Again(products=True, attention=attention)
        return again.Again(full=True) if how == "full" or every_other else None

    def _plain(self, block: Block, rule: again.Again | None, x: Tensor) -> Tensor:
        faults, t = self.job.faults, self.tape
        if faults.slow_per_layer and faults.slow_rank == t.rank:
            nanoseconds = round(faults.slow_per_layer * 1e9)
            t.launch(Kernel("spin", (nanoseconds,)))
        with t.within(f"layers.{block.index}"):
            if self.run is None:
                return block.forward(t, x)
            return self.run(t, block, x, self.bucket_cap, rule)
