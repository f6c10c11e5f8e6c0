"""Operands of programs that lie otherwise than the result: broadcast masks, heads before lengths, halves, columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Call, Case, Tensors

aten = torch.ops.aten
Size = tuple[int, ...]
Operands = Callable[[Tensors, Size, str], tuple[Any, ...]]

#: Batch, heads, queries and keys of scores that a mask of every head's covers.
SCORES = (
    (1, 32, 2048, 2048), (1, 32, 1024, 1024), (2, 16, 1024, 1024), (4, 16, 512, 512), (1, 16, 4096, 4096),
    (2, 8, 2048, 2048), (8, 12, 256, 256), (1, 8, 1024, 1024), (1, 64, 1024, 2048), (4, 32, 2048, 2048),
)  # fmt: skip
#: Batch, heads, length and width of a head.
HEADS = (
    (1, 8, 512, 128), (2, 16, 1024, 64), (4, 32, 2048, 64), (8, 16, 1024, 128), (1, 32, 4096, 128), (2, 8, 256, 64),
    (16, 12, 512, 64), (8, 8, 1024, 128), (1, 2, 128, 64),
)  # fmt: skip
#: Rows and width of a half of a projection.
HALVES = (
    (8192, 4096), (2048, 2048), (4096, 14336), (16384, 1024), (2048, 512), (4096, 7168), (512, 1024),
)  # fmt: skip
#: Rows and width of what every row has one number for.
COLUMNS = (
    (2048, 128256), (2048, 32000), (4096, 128256), (512, 151936), (8192, 50304), (16384, 1000), (4096, 4096),
    (65536, 128), (2048, 2048), (256, 1024), (1024, 32000),
)  # fmt: skip
#: Batch, channels and side over which a mean's gradient is spread.
SPREAD = (
    (128, 2048, 7), (64, 1280, 8), (256, 960, 7), (32, 1024, 7), (16, 512, 14), (128, 24, 112), (8, 320, 28),
)  # fmt: skip
#: Batch, length, heads and pairs of a head that are rotated as complex numbers.
COMPLEX = (
    (2, 2048, 32, 32), (2, 2048, 8, 32), (1, 4096, 32, 64), (8, 1024, 16, 64), (1, 512, 8, 32), (4, 2048, 32, 32),
    (2, 4096, 8, 64), (1, 256, 4, 32),
)  # fmt: skip
#: Batch, length and width of a sequence whose channels come first in memory.
SEQUENCES = (
    (8, 1500, 768), (16, 1500, 512), (4, 3000, 1024), (32, 512, 384), (8, 196, 768), (2, 1500, 1280),
)  # fmt: skip


def _scores(on: Tensors, size: Size, dtype: str) -> tuple[Any, ...]:
    batch, _, queries, keys = size
    return on.normal(*size, dtype=dtype), on.mask(batch, 1, queries, keys)


def _transposed(on: Tensors, size: Size, dtype: str) -> tuple[Any, ...]:
    """Heads as a linear layer leaves them, and as a kernel does; "mixed": the second in fp32."""
    batch, heads, length, width = size
    first = "bf16" if dtype == "mixed" else dtype
    second = "fp32" if dtype == "mixed" else dtype
    rotated = on.normal(batch, length, heads, width, dtype=first).transpose(1, 2)
    return rotated, on.normal(*size, dtype=second)


def _half(on: Tensors, size: Size, dtype: str) -> tuple[Any, ...]:
    rows, width = size
    whole = on.normal(rows, 2 * width, dtype=dtype)
    return whole.chunk(2, -1)[0], on.normal(rows, width, dtype=dtype)


def _column(on: Tensors, size: Size, dtype: str) -> tuple[Any, ...]:
    rows, width = size
    own = "bf16" if dtype == "mixed" else dtype
    number = "fp32" if dtype == "mixed" else dtype
    return on.normal(rows, width, dtype=own), on.positive(rows, 1, dtype=number)


def _row(on: Tensors, size: Size, dtype: str) -> tuple[Any, ...]:
    """In bf16, with a row in fp32."""
    rows, width = size
    return on.normal(rows, width, dtype="bf16"), on.normal(width, dtype="fp32")


def _spread(on: Tensors, size: Size, dtype: str) -> tuple[Any, ...]:
    batch, channels, side = size
    mean = on.normal(batch, channels, 1, 1, dtype=dtype)
    return (mean.expand(batch, channels, side, side),)


def _number(on: Tensors, size: Size, dtype: str) -> tuple[Any, ...]:
    return (on.normal(1, dtype=dtype).expand(size),)


def _complex(on: Tensors, size: Size, dtype: str) -> tuple[Any, ...]:
    _, length, _, pairs = size
    x = on.normal(*size, 2, dtype="fp32")
    turns = on.normal(1, length, 1, pairs, 2, dtype="fp32")
    return torch.view_as_complex(x), torch.view_as_complex(turns)


def _sequence(on: Tensors, size: Size, dtype: str) -> tuple[Any, ...]:
    batch, length, width = size
    second = "fp32" if dtype == "mixed" else dtype
    channels_first = on.normal(batch, width, length, dtype="bf16")
    return channels_first.permute(0, 2, 1), on.normal(length, width, dtype=second)


Table = dict[str, Callable[..., Any]]
OF_SCORES: Table = {
    "masked_fill_scores_": lambda x, m: x.masked_fill_(m, -1e4),
    "where_scores": lambda x, m: torch.where(m, x, 0.0),
}
OF_TRANSPOSED: Table = {
    "add_heads": lambda x, y: x + y,
    "mul_heads": lambda x, y: x * y,
    "sub_heads": lambda x, y: x - y,
}
OF_HALF: Table = {
    "sigmoid_of_half": lambda x, y: torch.sigmoid(x),
    "gelu_of_half": lambda x, y: F.gelu(x),
    "mul_of_half": lambda x, y: x * y,
    "add_of_half": lambda x, y: x + y,
    "silu_backward_of_half": lambda x, y: aten.silu_backward(y, x),
    "gelu_backward_of_half": lambda x, y: aten.gelu_backward(y, x),
    "sigmoid_backward_of_half": lambda x, y: aten.sigmoid_backward(y, x),
}
OF_COLUMN: Table = {
    "sub_column": lambda x, y: x - y,
    "div_column": lambda x, y: x / y,
    "mul_each_by_column": lambda x, y: x * y,
}

#: Operations, sizes, operands and types.
GROUPS: tuple[tuple[Table, tuple[Size, ...], Operands, tuple[str, ...]], ...] = (
    (OF_SCORES, SCORES, _scores, ("bf16", "fp32", "fp16")),
    (OF_TRANSPOSED, HEADS, _transposed, ("bf16", "fp32", "mixed")),
    (OF_HALF, HALVES, _half, ("bf16", "fp32")),
    (OF_COLUMN, COLUMNS, _column, ("bf16", "fp32", "mixed")),
    ({"mul_bf16_by_fp32_row": lambda x, y: x * y}, COLUMNS[4:], _row, ("mixed",)),
    ({"div_of_spread": lambda x: x / 49.0}, SPREAD, _spread, ("bf16", "fp32")),
    (
        {"div_of_number": lambda x: x / 49.0},
        ((2048,), (65536,), (2**18,), (2**22,), (2**24,)),
        _number,
        ("bf16", "fp32"),
    ),
    ({"mul_complex": lambda x, y: x * y}, COMPLEX, _complex, ("complex64",)),
    (
        {"add_positions": lambda x, y: x + y},
        SEQUENCES,
        _sequence,
        ("bf16", "mixed"),
    ),
)


def cases() -> Iterator[Case]:
    for table, sizes, operands, dtypes in GROUPS:
        for name, function in table.items():
            for size in sizes:
                for dtype in dtypes:
                    make = functools.partial(_call, operands, function, size, dtype)
                    yield Case("laid_out", name, size, make, {"dtype": dtype}, round=3)


def _call(
    operands: Operands,
    function: Callable[..., Any],
    size: Size,
    dtype: str,
    on: Tensors,
) -> Call:
    values = operands(on, size, dtype)
    return lambda: function(*values)
