"""`flex_attention`: the kernel that Inductor generates for it, and how much of the scores its mask leaves.

The functions that score and mask are no operations of their own: the kernel has them inside. What they would send
gradients to beside query, key and value gets none.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as module

from prestep.workloads.capture.record.values import value_of

ASSUMED = "flex_attention: one fused kernel, with as many blocks as its mask leaves"
#: Share of the blocks of scores where nobody knows what a mask leaves: that of a causal one.
UNKNOWN = 0.5
HALF = "flex_attention: half of the scores, by a mask that is too large to be computed"
#: Places in a block mask's tuple: blocks that are masked in part, their columns, blocks that are whole.
PARTIAL, COLUMNS, WHOLE = 2, 3, 4


def _attend(
    query: Tensor, key: Tensor, value: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    """Results and the logarithms of the rows' sums; ``share`` of the scores are computed."""
    raise NotImplementedError("fake tensors have no numbers")


def _results(query: Tensor, key: Tensor, value: Tensor, share: float) -> Any:
    rows = query.shape[:-1]
    lengths = query.new_empty(rows, dtype=torch.float32)
    return query.new_empty((*rows, value.shape[-1])), lengths


def _attend_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    lengths: Tensor,
    share: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    raise NotImplementedError("fake tensors have no numbers")


def _alike(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: Any) -> Any:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.share = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(context: Any, gradient: Tensor, _: Any) -> tuple[Any, ...]:
    return *backward(gradient, *context.saved_tensors, context.share), None


define: Any = torch.library.custom_op
attention = define("prestep::flex_attention", _attend, mutates_args=())
backward = define("prestep::flex_attention_backward", _attend_backward, mutates_args=())
attention.register_fake(_results)
backward.register_fake(_alike)
attention.register_autograd(_gradients, setup_context=_keep)


def install(assumed: Counter[str]) -> None:
    """`flex_attention` is one operation from now on; what is ``assumed`` of it is counted."""

    def called(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score: Any,
        block_mask: tuple[Any, ...],
        *_: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        share = _share(block_mask)
        assumed[ASSUMED if share is not None else HALF] += 1
        result, lengths = attention(
            query, key, value, UNKNOWN if share is None else share
        )
        return result, lengths, lengths

    module.flex_attention_hop = called


def _share(block_mask: tuple[Any, ...]) -> float | None:
    """Of all blocks of scores, those that a mask leaves in whole or in part; None where nobody knows."""
    counted = [value_of(block_mask[place]) for place in (PARTIAL, WHOLE)]
    if counted[0] is None or (counted[1] is None and block_mask[WHOLE] is not None):
        return None
    columns = block_mask[COLUMNS].shape[-1]
    blocks = sum(float(each.sum()) for each in counted if each is not None)
    return min(1.0, blocks / (counted[0].numel() * columns))
