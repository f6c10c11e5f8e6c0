"""Low-rank adapters beside the frozen projections of experts.

Megatron Bridge puts one adapter beside all experts of a rank (share_expert_adapters): two thin products of all rows
that came, whoever they are for. Ranks of the expert-parallel group hold the same one, and sum its gradients as soon as
they are there (peft/utils.py, _allreduce_shared_expert_grad). Or every expert has its own, in grouped products
(GroupedExpertLinearAdapter; GroupedExpertsLoRA of NeMo Automodel).
"""

from __future__ import annotations

from dataclasses import replace

from prestep.workloads.job.adapter import Target
from prestep.workloads.megatron.adapter import (
    PREFIX,
    joined,
    through_column,
    through_row,
)
from prestep.workloads.megatron.grouped_linear import GroupedLinear
from prestep.workloads.megatron.linear import gradient_of
from prestep.workloads.megatron.low_rank import Pair, dropped, matrices, moved, scaled
from prestep.workloads.megatron.shard import Shard, alone
from prestep.workloads.megatron.spread import EXPERTS_PREFIX, Spread
from prestep.workloads.megatron.tensor_parallel import STREAM, finish
from prestep.workloads.parallel.group import Group
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
        if target not in adapter.places or adapter.experts == "frozen":
            return None
        experts, n, k = w.shape
        into, out = matrices(n, k, self.s, row)
        each = (experts,) if adapter.experts == "each" else ()
        name = f"{EXPERTS_PREFIX}{PREFIX}{target}"
        return Pair(
            module.add(t, *each, *into, name=f"{name}.linear_in"),
            module.add(t, *each, *out, name=f"{name}.linear_out"),
        )

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
        if s.adapter.experts == "each":
            z = self._grouped(t, x, pair, products, row)
        else:
            both = Pair(self._summed(t, pair.into), self._summed(t, pair.out))
            z = (through_row if row else through_column)(t, x, both, s)
        if row and s.group.size > 1:
            z = moved(t, z, s, "all_gather", "", y.shape)
        return joined(t, y, z, s)

    def _grouped(
        self, t: Tape, x: Tensor, pair: Pair, products: GroupedLinear, row: bool
    ) -> Tensor:
        """Thin products of every expert, in 16 bits; ranks that hold experts together exchange as beside one weight."""
        s = self.s
        numbers = replace(products.numbers, products="", overlap=False)
        thin = replace(products, numbers=numbers, single=False)
        z = dropped(t, x, s, "pre")
        spread = s.group.size > 1
        if spread and not row:
            z = moved(t, z, s, "", "all_reduce", z.shape)
        z = thin.linear(t, z, pair.into, (False, False))
        if spread and row:
            z = moved(t, z, s, "all_reduce", "all_reduce", z.shape)
        if spread and not row:
            wide = (*z.shape[:-1], s.adapter.rank)
            z = moved(t, z, s, "all_gather", "all_reduce", wide)
        return thin.linear(t, scaled(t, z, s, "inner"), pair.out, (False, False))

    def _summed(self, t: Tape, w: Tensor) -> Tensor:
        """A matrix that all expert-parallel ranks hold: its gradient is summed when it is there, and waited for."""
        group = self.ranks
        if group.size == 1:
            return w
        return t.apply(
            Tensor(w.storage, w.shape, w.itemsize),
            [w],
            lambda g: [_over(t, w, group)],
        )


def _over(t: Tape, w: Tensor, group: Group) -> Tensor | None:
    """The sum of a gradient over a group."""
    group.collective(t, "all_reduce", w.size, STREAM, "functional_collective")
    finish(t)
    return gradient_of(w)
