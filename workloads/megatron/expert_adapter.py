"""Which projections of a module have low-rank adapters, and those of experts.

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
    spread_whole,
    through_column,
    through_row,
)
from prestep.workloads.megatron.grouped_linear import GroupedLinear
from prestep.workloads.megatron.linear import gradient_of
from prestep.workloads.megatron.shard import EXPERTS_PREFIX, Shard, alone
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

PREFIX = "adapter."
#: What adapters call projections, by their weights' names, and how ranks share them: by columns or rows, or whole.
PROJECTIONS: dict[str, tuple[Target, str]] = {
    "linear_qkv": ("qkv", "column"),
    "linear_proj": ("proj", "row"),
    "linear_fc1": ("fc1", "column"),
    "linear_fc2": ("fc2", "row"),
    "linear_q_down_proj": ("q_down", "whole"),
    "linear_q_up_proj": ("q_up", "column"),
    "linear_kv_down_proj": ("kv_down", "whole"),
    "linear_kv_up_proj": ("kv_up", "column"),
    "in_proj": ("in_proj", "column"),
    "out_proj": ("out_proj", "row"),
}


def adapt(t: Tape, module: Module, s: Shard) -> None:
    """Freezes a module's weights, and adds an adapter to each projection that the job adapts."""
    for w in tuple(module.parameters):
        w.requires_grad = False
        name = w.name.removeprefix(EXPERTS_PREFIX)
        target, way = PROJECTIONS.get(name, ("", ""))
        if target not in s.adapter.places:
            continue
        row, (n, k) = way == "row", w.shape[-2:]
        if name != w.name:  # a weight of experts, whose names have a prefix
            shapes = ExpertAdapters(s).shapes(w, row)
        elif way == "whole":
            own = spread_whole(s)
            shapes = matrices(n // own.group.size, k, own, row)
        else:
            shapes = matrices(n, k, s, row)
        ahead = w.name.removesuffix(name) + PREFIX
        made = [
            module.add(t, *shape, name=f"{ahead}{target}.linear_{part}")
            for shape, part in zip(shapes, ("in", "out"), strict=False)
        ]
        if made:
            t.pairs[w] = Pair(*made)


class ExpertAdapters:
    """The adapters of a layer's experts on this rank, spread as the experts' projections are."""

    def __init__(self, s: Shard) -> None:
        spread = s.spread
        if spread is None:
            raise RuntimeError("adapters of experts that nobody spread")
        self.ranks = spread.group
        # Experts' columns and rows are spread over the ranks that hold them together; sequences are not.
        group = alone(s.group) if spread.tensor is None else spread.tensor
        rank = s.adapter.expert_rank or s.adapter.rank
        adapter = replace(s.adapter, rank=rank)
        self.s = replace(s, group=group, sequence=False, adapter=adapter)

    def shapes(self, w: Tensor, row: bool) -> tuple[tuple[int, ...], ...]:
        """Of the matrices beside projections ``w`` (experts, n, k); none where they have no adapter."""
        adapter, (experts, n, k) = self.s.adapter, w.shape
        if adapter.experts == "frozen":
            return ()
        each = (experts,) if adapter.experts == "each" else ()
        return tuple((*each, *shape) for shape in matrices(n, k, self.s, row))

    def beside(
        self,
        t: Tape,
        x: Tensor,
        y: Tensor,
        w: Tensor,
        products: GroupedLinear,
        row: bool,
    ) -> Tensor:
        """``y``, the experts' products ``w`` of the rows ``x``, with those of their adapter added."""
        s, pair = self.s, t.pairs.get(w)
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
