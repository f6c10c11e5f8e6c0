"""How a layer is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workloads.job.adapter import Adapter
from workloads.job.megatron import Megatron
from workloads.job.pytorch import PyTorch
from workloads.megatron.gemm import Numbers
from workloads.megatron.spread import Spread
from workloads.parallel.group import Group
from workloads.routing import Loads


@dataclass(frozen=True)
class Shard:
    """How a layer is spread: its tensor-parallel group, and the tokens that this rank sees of a microbatch."""

    group: Group
    sequence: bool
    options: Megatron
    numbers: Numbers
    batch: int
    tokens: int  # of one sample on this rank, after context parallelism
    seq_len: int
    context: Group | None = None
    recompute_core: bool = False  # attention's inner part is run again in backward
    spread: Spread | None = None  # of experts
    packed: int | None = None  # tokens of a document, where attention sees no other
    adapter: Adapter = Adapter()  # noqa: RUF009 - frozen
    trainer: PyTorch | None = None  # whose layers these are, where not Megatron's

    def eager(self, part: str) -> bool:
        """Whether a part of a layer runs operator by operator."""
        return self.trainer is not None and part in self.trainer.eager_operators

    @property
    def counts_wait(self) -> bool:
        """Whether the host waits until the GPU knows how many tokens come here.

        DeepEP does, and so do PyTorch's all-to-alls of uneven parts (torchtitan, distributed/expert_parallel.py).
        """
        waits = self.options.moe_token_dispatcher in ("flex", "alltoall")
        return self.trainer is not None and waits

    @property
    def dtensors(self) -> bool:
        """Whether projections are spread as PyTorch's DTensors, not by Transformer Engine's user buffers."""
        spread = self.group.size > 1 and not self.options.tp_comm_overlap
        return self.trainer is not None and spread

    @property
    def compiled(self) -> bool:
        """Whether layers are compiled."""
        return self.trainer is not None and self.trainer.compiled_layers

    @property
    def loads(self) -> Loads:
        """Tokens of this rank's experts over the mean of all."""
        return self.spread.loads if self.spread is not None else ()

    @property
    def gathers(self) -> bool:
        """Between tensor-parallel regions each rank has a part of the sequence."""
        return self.sequence and self.group.size > 1

    @property
    def rows(self) -> int:
        """Sequence positions between tensor-parallel regions."""
        return self.tokens // (self.group.size if self.sequence else 1)


@dataclass(frozen=True)
class Heads:
    """Attention heads of one rank: of queries, of keys and values, and the elements of each.

    ``alibi``: a bias by distance is added to their scores.
    """

    queries: int
    keys: int
    dim: int
    alibi: bool = False


def alone(group: Group) -> Group:
    """The group's first rank by itself."""
    return replace(group, ranks=group.ranks[:1], copies=[group.ranks[:1]])


def whole(s: Shard) -> Shard:
    """For a projection that is whole on every rank and sees its part of the sequence."""
    return replace(s, group=alone(s.group), sequence=False)
