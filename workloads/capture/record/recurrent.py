"""Recurrent layers as CUDA runs them: all times of all layers in one call of cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
#: cuDNN's numbers of the kinds of layers.
RELU, TANH, LSTM, GRU = range(4)

Tensors = tuple[torch.Tensor, ...]


def _called(
    mode: int,
    source: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    options: Sequence[Any],
    batch_sizes: Sequence[int],
) -> Tensors:
    """Output and last states; `options`: as PyTorch's recurrent operators take them, batch_first the last."""
    biases, layers, dropout, train, bidirectional, batch_first = options
    hidden, cell = states[0], states[1] if len(states) > 1 else None
    width = hidden.shape[2] if cell is None else cell.shape[2]
    projected = hidden.shape[2] if hidden.shape[2] != width else 0
    for_layer = (4 if biases else 2) + bool(projected)
    results = aten._cudnn_rnn(
        source,
        list(weights),
        for_layer,
        None,
        hidden.contiguous(),
        None if cell is None else cell.contiguous(),
        mode,
        width,
        projected,
        layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        list(batch_sizes),
        None,
    )
    return tuple(results[: 1 + len(states)])


def _whole(mode: int) -> Callable[..., Tensors]:
    def run(source: torch.Tensor, states: Any, weights: Any, *options: Any) -> Tensors:
        return _called(mode, source, _listed(states), weights, options, ())

    return run


def _packed(mode: int) -> Callable[..., Tensors]:
    """Of sequences of different lengths: rows of all, and how many sequences reach each time."""

    def run(
        rows: torch.Tensor,
        sizes: torch.Tensor,
        states: Any,
        weights: Any,
        *options: Any,
    ) -> Tensors:
        in_order = (*options, False)
        return _called(mode, rows, _listed(states), weights, in_order, sizes.tolist())

    return run


def _listed(states: Any) -> Sequence[torch.Tensor]:
    return [states] if isinstance(states, torch.Tensor) else states


MODES = {"lstm": LSTM, "gru": GRU, "rnn_tanh": TANH, "rnn_relu": RELU}
RULES: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, name).input: _whole(mode) for name, mode in MODES.items()},
    **{getattr(aten, name).data: _packed(mode) for name, mode in MODES.items()},
}
