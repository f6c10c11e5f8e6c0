"""Low-rank adapters beside the frozen projections of experts.

Megatron Bridge puts one adapter beside all experts of a rank (share_expert_adapters): two thin products of all rows
that came, whoever they are for. Ranks of the expert-parallel group hold the same one, and sum its gradients as soon as
they are there (peft/utils.py, _allreduce_shared_expert_grad). Or every expert has its own, in grouped products
(GroupedExpertLinearAdapter; GroupedExpertsLoRA of NeMo Automodel).
"""

from __future__ import annotations

from dataclasses import replace

from prestep.workloads.exchanges.tensor import exchange
from prestep.workloads.job.adapter import Target
from prestep.workloads.megatron.adapter import (
    Pair,
    joined,
    matrices,
    moved,
    registered,
    through_column,
    through_row,
)
from prestep.workloads.megatron.grouped_linear import GroupedLinear
from prestep.workloads.megatron.linear import gradient_of
from prestep.workloads.megatron.shard import EXPERTS_PREFIX, Shard, Spread, alone
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor


class ExpertAdapters:
    """The adapters of a layer's experts on this rank, spread as the experts' projections are."""

    def __init__(self, s: Shard, spread: Spread) -> None:
        self.ranks = spread.group
        # Experts' columns and rows are spread over the ranks that hold them together; sequences are not.
        group = alone(s.group) if spread.tensor is None else spread.tensor
        rank = s.adapter.expert_rank or s.adapter.rank
        adapter = replace(s.adapter, rank=rank)
        self.s = replace(s, group=group, sequence=False, adapter=adapter)

    def of(
        self, t: Tape, module: Module, target: Target, w: Tensor, row: bool
    ) -> Pair | None:
        """The adapter of the projections ``w`` (experts, n, k), registered with their module."""
        adapter = self.s.adapter
        if adapter.experts == "frozen":
            return None
        experts, n, k = w.shape
        each = (experts,) if adapter.experts == "each" else ()
        into, out = ((*each, *shape) for shape in matrices(n, k, self.s, row))
        return registered(module, t, target, self.s, into, out, EXPERTS_PREFIX)

    def beside(
        self,
        t: Tape,
        x: Tensor,
        y: Tensor,
        pair: Pair | None,
        products: GroupedLinear,
        row: bool,
    ) -> Tensor:
        """``y``, the experts' products of the rows ``x``, with those of their adapter added."""
        s = self.s
        if pair is None:
            return y
        through = through_row if row else through_column
        if s.adapter.experts == "each":
            # Thin products of every expert, in 16 bits.
            numbers = replace(products.numbers, products="", overlap=False)
            thin = replace(products, numbers=numbers, single=False)
            z = through(
                t, x, pair, s, lambda x, w: thin.linear(t, x, w, (False, False))
            )
        else:
            both = Pair(self._summed(t, pair.into), self._summed(t, pair.out))
            z = through(t, x, both, s)
        if row and s.group.size > 1:
            z = moved(t, z, s, "all_gather", "", y.shape)
        return joined(t, y, z, s)

    def _summed(self, t: Tape, w: Tensor) -> Tensor:
        """A matrix that all expert-parallel ranks hold: its gradient is summed when it is there, and waited for."""
        group = self.ranks
        if group.size == 1:
            return w

        def backward(g: Tensor) -> list[Tensor | None]:
            exchange(t, "all_reduce", w.size, group)
            return [gradient_of(w)]

        return t.apply(Tensor(w.storage, w.shape, w.itemsize), [w], backward)
