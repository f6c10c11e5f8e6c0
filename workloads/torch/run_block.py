"""Runs the blocks of a transformer: gathered by FSDP, checkpointed, slowed down by a fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job import JobSpec
from prestep.workloads.torch.block import Block
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.sharding.module_unit import ModuleUnit
    from prestep.workloads.torch import activation_checkpoint, again


class RunBlock(Protocol):
    """Runs a transformer's block; ``bucket_cap`` is the size of DDP's buckets, None without DDP."""

    def __call__(
        self, t: Tape, block: Block, x: Tensor, bucket_cap: float | None
    ) -> Tensor: ...


def as_written(t: Tape, block: Block, x: Tensor, bucket_cap: float | None) -> Tensor:
    """Runs a block by its own operators."""
    return block.forward(t, x)


@dataclass
class BlockRunner:
    """Runs the blocks of one rank.

    Attributes
    ----------
    job : JobSpec
    tape : Tape
    run : RunBlock
        Runs a block whose parameters are there.
    sharded : dict
        FSDP's group of every block that has one.
    bucket_cap : float, optional
        Size of DDP's buckets, bytes.
    """

    job: JobSpec
    tape: Tape
    run: RunBlock
    sharded: dict[Block, ModuleUnit] = field(default_factory=dict)
    bucket_cap: float | None = None

    def __call__(self, block: Block, x: Tensor) -> Tensor:
        """The block's output; its parameters are gathered for it where they are sharded."""

        def gathered(x: Tensor | None) -> Tensor:
            if x is None:
                raise TypeError("a block needs an input")
            return self._forward(block, x)

        group = self.sharded.get(block)
        return group.forward(x, gathered) if group is not None else gathered(x)

    def _forward(self, block: Block, x: Tensor) -> Tensor:
        """Runs a block, checkpointed if it is to be computed again in backward."""
        if not (self._recomputed(block) and self.tape.grad_enabled):
            return self._plain(block, x)
        products_alone = self.job.training.recompute == "products"
        attention = self.job.pytorch.recompute_attention
        rule = None
        if products_alone:
            rule = again.Again(products=True, attention=attention)
        return activation_checkpoint.checkpoint(
            self.tape, lambda y: self._plain(block, y), x, rule
        )

    def _recomputed(self, block: Block) -> bool:
        how = self.job.training.recompute
        every_other = how == "alternate" and block.index % 2 == 0
        return how in ("full", "products") or every_other

    def _plain(self, block: Block, x: Tensor) -> Tensor:
        faults = self.job.faults
        if faults.slow_per_layer and faults.slow_rank == self.tape.rank:
            nanoseconds = round(faults.slow_per_layer * 1e9)
            self.tape.launch(Kernel("spin", (nanoseconds,)))
        with self.tape.within(f"layers.{block.index}"):
            return self.run(self.tape, block, x, self.bucket_cap)
