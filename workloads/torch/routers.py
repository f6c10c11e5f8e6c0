"""Routers of experts: which experts see a token, and by what their results are weighted.

Sources: torchtitan 0.2.2, models/moe/moe.py (TokenChoiceTopKRouter); transformers 5.24, MixtralTopKRouter and
GptOssTopKRouter. Scores are compared in fp32.
"""

from __future__ import annotations

from prestep.workloads.operators.reductions import reduction
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.operators.tensors import contiguous
from prestep.workloads.torch import aten
from prestep.workloads.torch import indexing as I
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.written_out import WIDE, widened

#: What keeps a sum of scores from being zero.
LEAST = 1e-20


def chosen_by_titan(
    t: Tape, logits: Tensor, count: int, corrected: bool
) -> tuple[Tensor, Tensor]:
    """Weights and numbers of so many experts for every token, from what a gate gives each expert.

    What a bias that balances experts adds counts for the choice alone. Scores are a sigmoid where one expert is chosen
    (Llama 4) or where the model itself corrects the choice (DeepSeek-V3), else a softmax.
    """
    t.cpu("module")
    wide = widened(t, logits)
    if corrected or count == 1:
        scores = aten.activation(t, "sigmoid", wide)
    else:
        scores = I.softmax(t, wide, dim=1)
    del wide
    bias = t.table("expert_bias", scores.shape[1:], WIDE)
    corrected_scores = I.made(t, "add.Tensor", (scores, bias))
    numbers = _places(t, corrected_scores, (count, -1, True, False))
    weights = I.gather(t, scores, numbers)
    if count > 1:
        total = aten.add_number(t, summed(t, weights, -1), LEAST)
        weights = divided(t, weights, total)
    return aten.mul_number(t, weights, 1.0), numbers


def chosen_by_transformers(
    t: Tape, logits: Tensor, count: int, trained: bool, narrow: bool, norm: bool
) -> tuple[Tensor, Tensor]:
    """The same of transformers; ``trained``: the gate has a bias, and scores are those of the chosen alone.

    ``narrow``: weights get the logits' type; ``norm``: those of a token sum to one.
    """
    t.cpu("module")
    if trained:
        weights, numbers = highest(t, logits, count)
        return I.softmax(t, weights, dim=1), numbers
    weights, numbers = highest(t, I.softmax(t, widened(t, logits)), count)
    if norm:
        weights = divided(t, weights, summed(t, weights, -1), in_place=True)
    return aten.to(t, weights, logits.itemsize) if narrow else weights, numbers


def _places(t: Tape, x: Tensor, how: tuple[int | bool, ...]) -> Tensor:
    """Where the highest values of a row are, as ``torch.topk`` finds them; without history."""
    shape = *x.shape[:-1], how[0]
    values, places = (t.empty(shape, size) for size in (x.itemsize, I.INDEX))
    aten.call(t, kernels_of, "topk.default", (x, *how), values, places)
    return places


def highest(t: Tape, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``x.topk(count)``: saves places; backward puts gradients there, among zeros."""
    t.saves()
    shape = x.shape
    y, places = (t.empty((*shape[:-1], count), n) for n in (x.itemsize, I.INDEX))
    aten.call(t, kernels_of, "topk.default", (x, count), y, places)

    def backward(g: Tensor) -> list[Tensor | None]:
        zeros = I.new_zeros(t, g, shape)
        arguments = zeros, -1, places, g
        return [aten.call(t, kernels_of, "scatter_.src", arguments, zeros)]

    return t.apply(y, [x], backward), places


def summed(t: Tape, x: Tensor, dim: int, keep: bool = True) -> Tensor:
    """``x.sum(dim, keepdim=keep)``: saves nothing; its gradient is repeated."""
    shape, at = x.shape, dim % len(x.shape)
    kept = *shape[:at], 1, *shape[at + 1 :]
    y = t.empty(kept if keep else shape[:at] + shape[at + 1 :], x.itemsize)
    arguments = (x, (dim,), True) if keep else (x, (dim,))
    aten.call(t, reduction, "sum.dim_IntList", arguments, y)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu(aten.VIEW_BACKWARD, 1 if keep else 2)
        steps = list(aten.strides_of(aten.view(g, kept, contiguous(kept))))
        steps[at] = 0
        return [aten.view(g, shape, steps)]

    return t.apply(y, [x], backward)


def divided(t: Tape, x: Tensor, by: Tensor, in_place: bool = False) -> Tensor:
    """``x / by``: saves both; `in_place`: ``x /= by``, for which a copy is saved."""
    t.saves(2)
    if in_place:
        saved = aten.over(t, "clone.default", x)
        y = aten.view(x, x.shape, aten.strides_of(x))
        aten.call(t, kernels_of, "div_.Tensor", (x, by), y)
    else:
        saved, y = x, aten.over(t, "div.Tensor", x, by)

    def backward(g: Tensor) -> list[Tensor | None]:
        quotient = aten.over(t, "div.Tensor", saved, by)
        quotient = aten.over(t, "div.Tensor", quotient, by)
        turned = aten.over(t, "neg.default", g)
        of_other = aten.over(t, "mul.Tensor", turned, quotient)
        of_x = aten.over(t, "div.Tensor", g, by)
        return [of_x, aten.sum_to(t, of_other, by.shape)]

    return t.apply(y, [x, by], backward)
