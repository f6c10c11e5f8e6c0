"""Shapes of results of operators that PyTorch has for CUDA alone, where it says them for no other device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_impls import register_op_impl

Tensors = tuple[torch.Tensor, ...]
_library = torch.library.Library("aten", "IMPL")


def install() -> None:
    for name, rule in RULES.items():
        _library.impl(name, rule, "Meta", allow_override=True)
    torch._decomp.decomposition_table.pop(torch.ops.aten._log_softmax.default, None)
    register_op_impl(torch.ops.aten._log_softmax.default)(_log_softmax)
    register_op_impl(SUMS.__contains__)(_added_in_place)


SUMS = {torch.ops.aten.add_.Tensor, torch.ops.aten.sub_.Tensor}


def _added_in_place(
    _: Any, __: Any, tensor: torch.Tensor, other: Any, **___: Any
) -> Any:
    """A tensor to which the rows of a sparse one are added."""
    sparse = isinstance(other, torch.Tensor) and other.layout == torch.sparse_coo
    return tensor if sparse and tensor.layout == torch.strided else NotImplemented


def _log_softmax(
    fake: Any, _: Any, scores: torch.Tensor, dim: int, half_to_float: bool
) -> torch.Tensor:
    """In fp32 from any half: what PyTorch has for other devices takes fp16 alone."""
    dtype = torch.float32 if half_to_float else scores.dtype
    with fake:
        return torch.empty_like(
            scores, dtype=dtype, memory_format=torch.contiguous_format
        )


def _channels(image: torch.Tensor) -> torch.Tensor:
    """One number for each channel; halves are summed in fp32."""
    half = image.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if half else image.dtype
    return torch.empty(image.shape[1], dtype=dtype, device="meta")


def _statistics(image: torch.Tensor, *_: Any) -> Tensors:
    return _channels(image), _channels(image)


def _normalized(image: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(image)


def _sums(
    gradient: torch.Tensor,
    image: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    *_: Any,
) -> Tensors:
    return tuple(_channels(image) for _ in range(4))


def _grouped(
    left: torch.Tensor,
    right: torch.Tensor,
    ends: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of groups in any type: CUDA multiplies others than bf16 group by group; rows begin at 16 bytes."""
    groups = ends.shape[:1] if ends is not None else left.shape[:1]
    by_group = left.dim() == right.dim()
    rows, columns = left.shape[-2], right.shape[-1]
    dtype = dtype or left.dtype
    step = max(1, 16 // dtype.itemsize)
    wide = -(-columns // step) * step
    shape: tuple[int, ...] = (rows, columns)
    strides: tuple[int, ...] = (wide, 1)
    if by_group:
        shape, strides = (*groups, *shape), (rows * wide, *strides)
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


# -- recurrent layers by cuDNN ---------------------------------------------------------------------

GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # by cuDNN's mode: ReLU, tanh, LSTM, GRU


def _recurrent(
    source: torch.Tensor,
    weight: Sequence[torch.Tensor],
    stride: int,
    buffer: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    *options: Any,
) -> Tensors:
    """Output, last states, and what cuDNN keeps for backward: gates and states of every time and layer."""
    mode, hidden, projected, layers, _, _, train, bidirectional, packed, _ = options
    directions = 2 if bidirectional else 1
    width = projected or hidden
    times = tuple(source.shape[:1] if packed else source.shape[:2])
    reserve = prod(times) * layers * directions * hidden * (GATES[mode] + 2)
    return (
        source.new_empty((*times, width * directions)),
        torch.empty_like(hx),
        source.new_empty(0) if cx is None else torch.empty_like(cx),
        source.new_empty(
            reserve * source.element_size() if train else 0, dtype=torch.uint8
        ),
        source.new_empty(0),
    )


def _recurrent_backward(
    source: torch.Tensor,
    weight: Sequence[torch.Tensor],
    weight_stride0: int,
    weight_buf: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    *_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    return (
        torch.empty_like(source),
        torch.empty_like(hx),
        source.new_empty(0) if cx is None else torch.empty_like(cx),
        [torch.empty_like(each) for each in weight],
    )


def _cell(
    of_inputs: torch.Tensor, of_states: torch.Tensor, state: torch.Tensor, *_: Any
) -> Tensors:
    """New states of a GRU's cell; gates, the state and a sum, which backward needs."""
    kept = state.new_empty((state.shape[0], 5 * state.shape[1]))
    return torch.empty_like(state), kept


def _cell_backward(
    gradient: torch.Tensor, kept: torch.Tensor, has_bias: bool
) -> Tensors:
    """Gradients of the products of inputs and states, of the state, and of both biases."""
    rows, width = gradient.shape
    gates = gradient.new_empty((rows, 3 * width))
    biases = (gradient.new_empty(3 * width if has_bias else 0) for _ in range(2))
    return gates, torch.empty_like(gates), torch.empty_like(gradient), *biases


RULES: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": _statistics,
    "batch_norm_gather_stats": _statistics,
    "batch_norm_gather_stats_with_counts": _statistics,
    "batch_norm_elemt": _normalized,
    "batch_norm_backward_elemt": lambda gradient, image, *_: torch.empty_like(image),
    "batch_norm_backward_reduce": _sums,
    "_grouped_mm": _grouped,
    "_thnn_fused_gru_cell": _cell,
    "_thnn_fused_gru_cell_backward": _cell_backward,
    **dict.fromkeys(("_fused_sgd_", "_fused_adagrad_"), lambda *_, **__: None),
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
}
