"""Families of packaged kernels: those that steps read, and those that only sets of kernels compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab import CASES
from prestep.sim.costs.gpu_files import HARDWARE
from prestep.sim.costs.kinds import DTYPE_BYTES
from prestep.sim.costs.library_families import (
    PRODUCTS,
    SCANS,
    Family,
    Sizes,
    Work,
)

TABLES = CASES / "kernels" / "tables"
EXCHANGING_SMS = 24  # most SMs that exchanges were measured with: a table's unit


def _attention_work(sizes: Sizes, dtype: str) -> Work:
    """Causal attention; queries and results have 16 bits."""
    batch, seq, heads, kv_heads, dim, _ = sizes.T
    window = _window(sizes)
    pairs = batch * heads * (seq * window - window * window / 2)
    vectors = batch * seq * (4.0 * heads + 2.0 * DTYPE_BYTES[dtype] * kv_heads)
    return 4.0 * pairs * dim, vectors * dim


def _window(sizes: Sizes) -> np.ndarray:
    """Tokens that the last token sees; a window of 0 is none."""
    seq, window = sizes[:, 1], sizes[:, 5]
    return np.where((window > 0) & (window < seq), window, seq)


def _attention_axes(sizes: Sizes) -> np.ndarray:
    batch, seq, heads, kv_heads, dim = np.log2(sizes[:, :5]).T
    work = 0.6 * (batch + heads)
    sharing = 0.5 * (heads - kv_heads)
    seen = np.log2(_window(sizes))
    return np.column_stack([work, seq, 0.5 * heads, sharing, 2.0 * dim, seen])


def _expert_work(sizes: Sizes, dtype: str) -> Work:
    """Three grouped products (gate, up, down) over the experts that a GPU holds, and their results in 16 bits."""
    tokens, hidden, inner, topk, experts, tensor, groups = sizes.T
    rows, width = tokens * topk / groups, inner / tensor
    weights = 3.0 * hidden * width
    results = 2.0 * (2.0 * tokens * hidden + rows * (hidden + 2.0 * width))
    size = DTYPE_BYTES[dtype] * experts / groups * weights + results
    return 2.0 * rows * weights, size


def _expert_axes(sizes: Sizes) -> np.ndarray:
    tokens, hidden, inner, topk, experts, tensor, groups = np.log2(sizes).T
    held, width = experts - groups, inner - tensor
    return np.column_stack(
        [0.7 * tokens, 2.0 * hidden, width, 0.7 * held, 2.0 * topk, 2.0 * experts]
    )


def _exchange_work(sizes: Sizes, dtype: str) -> Work:
    """Tokens that a GPU sends, once to each rank which it expects them to need, at what its SMs can copy."""
    ranks, tokens, hidden, topk, _, sms = sizes.T
    reached = ranks * (1.0 - (1.0 - 1.0 / ranks) ** topk)
    sent = DTYPE_BYTES[dtype] * tokens * reached * hidden
    return np.zeros_like(sent), 2.0 * sent * EXCHANGING_SMS / sms


def _exchange_axes(sizes: Sizes) -> np.ndarray:
    ranks, tokens, hidden, topk, experts, sms = np.log2(sizes).T
    return np.column_stack([2.0 * ranks, tokens, hidden, topk, 0.3 * experts, sms])


#: Tokens of a sequence, queries from its start on; `window` 0: every token sees all before it.
ATTENTION = Family(
    "attention",
    ("batch", "seq", "heads", "kv_heads", "dim", "window"),
    _attention_work,
    _attention_axes,
    3e-6,
)
#: The experts of a layer on one GPU of `tensor` x `groups` that share them; `tokens` of all groups.
EXPERTS = Family(
    "experts",
    ("tokens", "hidden", "inner", "topk", "experts", "tensor", "groups"),
    _expert_work,
    _expert_axes,
    8e-6,
)
#: Tokens to the ranks of their experts, and back: `tokens` of each of so many `ranks`, by SMs of each (1: not said).
EXCHANGES = Family(
    "exchanges",
    ("ranks", "tokens", "hidden", "topk", "experts", "sms"),
    _exchange_work,
    _exchange_axes,
    15e-6,
)
FAMILIES = (PRODUCTS, ATTENTION, EXPERTS, SCANS, EXCHANGES)


def folder_of(family: Family) -> Path:
    """Returns the folder with a family's table: packaged where steps read it."""
    return TABLES if family in (ATTENTION, EXPERTS, EXCHANGES) else HARDWARE
