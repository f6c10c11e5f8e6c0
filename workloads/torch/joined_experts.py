"""Experts as transformers runs them with ``experts_implementation="grouped_mm"``: rows sorted by expert, no padding.

Gates and what they are multiplied with are one product. Results go back to the order of the tokens by an inverse
permutation and are summed for each token (transformers 5.24, integrations/moe.py, grouped_mm_experts_forward).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.torch import aten
from prestep.workloads.torch import indexing as I
from prestep.workloads.torch.attention import split_joined
from prestep.workloads.torch.grouped_experts import product, with_biases
from prestep.workloads.torch.modules import Module, gated
from prestep.workloads.torch.routers import chosen_by_transformers, summed
from prestep.workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from prestep.workloads.torch.moe import Beside, MixtureOfExperts


class JoinedExperts(Module):
    """The feed-forward networks of ``experts`` experts, each split over ``parts`` ranks."""

    def __init__(self, t: Tape, m: ModelSpec, experts: int, parts: int = 1) -> None:
        super().__init__()
        self.activation, self.clamped, self.gated = m.activation, m.clamped, m.gated
        self.narrow, self.norm = m.router_narrow, m.norm_topk
        self.ffn = m.moe_ffn // parts
        self.w1, self.w2 = self._weights(t, m, experts)

    def _weights(self, t: Tape, m: ModelSpec, experts: int) -> tuple[Tensor, Tensor]:
        """Both weights, as (expert, output, input)."""
        width = self.ffn * (2 if m.gated else 1)
        first = self.project(t, width, m.hidden, "w1", m.bias, experts)
        return first, self.project(t, m.hidden, self.ffn, "w2", m.bias, experts)

    def mixed(
        self,
        layer: MixtureOfExperts,
        beside: Beside,
        t: Tape,
        logits: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """What the experts that a gate chooses make of tokens, weighted and summed; others come later."""
        (tokens, width), count = x.shape, layer.chosen
        trained = layer.gate in layer.biases
        weights, numbers = chosen_by_transformers(
            t, logits, count, trained, self.narrow, self.norm
        )
        del logits
        weights = aten.reshape(t, weights, tokens * count)
        run = partial(self._routed, t, weights, numbers.view(tokens * count), count)
        del weights, numbers
        y = layer.gathered(x, run)
        del run
        y = summed(t, aten.reshape(t, y, tokens, count, width), 1, keep=False)
        return y if y.itemsize == x.itemsize else aten.to(t, y, x.itemsize), None

    def _routed(
        self, t: Tape, weights: Tensor, numbers: Tensor, count: int, x: Tensor
    ) -> Tensor:
        """Weighted results of every token's experts, in the order of the tokens."""
        t.cpu("module")
        experts, rows = self.w1.shape[0], numbers.elements
        placed, order = (t.empty(numbers.shape, I.INDEX) for _ in range(2))
        aten.call(t, kernels_of, "sort.default", (numbers,), placed, order)
        x = I.index(t, x, I.integer(t, "floor_divide.default", order, count), count)
        weights = I.index(t, weights, order, 1)
        narrow = I.made(t, "_to_copy.default", (placed,), kind="int32", dtype="int32")
        each = I.made(t, "histc.default", (narrow, experts, 0, experts - 1), (experts,))
        I.made(t, "cumsum.default", (each, 0), dtype="int32")
        del narrow, each
        y = self._projected(t, self._inner(t, x, placed), self.w2, placed)
        del x, placed
        y = aten.mul(t, y, aten.reshape(t, weights, rows, 1))
        del weights
        numbers = I.integer(t, "arange.default", rows)
        with t.no_grad():
            back = I.put(t, numbers, order, t.empty((rows,), I.INDEX), 1)
        return I.index(t, y, back, 1)

    def _inner(self, t: Tape, x: Tensor, numbers: Tensor) -> Tensor:
        y = self._projected(t, x, self.w1, numbers)
        if not self.gated:
            return aten.activation(t, self.activation, y)
        first, second = split_joined(t, y, [self.ffn] * 2)
        del y
        return gated(t, self.activation, first, second, self.clamped)

    def _projected(self, t: Tape, x: Tensor, w: Tensor, numbers: Tensor) -> Tensor:
        """Outputs of rows whose experts have these ``numbers``."""
        y, bias = product(t, x, w), self.biases.get(w)
        return y if bias is None else with_biases(t, y, bias)
