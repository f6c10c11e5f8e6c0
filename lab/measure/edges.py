"""Sizes between and beyond those of the other families: few rows, fp16 beside bf16, losses and streams of any size.

Every kind is a family of its own, so that what the other families hold out stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Call, Case, Tensors, both
from lab.measure.products import product

ROUND = 3

#: Rows of a product, from a vector to where arithmetic bounds it.
ROWS = (
    1, 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 288, 320, 352, 384, 448, 512, 576, 640, 768, 896, 1024,
    1280, 1536, 2048,
)  # fmt: skip

#: Columns and depth of weights that meet so many rows.
WEIGHTS = ((8192, 8192), (4096, 4096), (4096, 8192), (8192, 2048), (28672, 4096))

#: Products of a Llama 70B as SemiAnalysis and Hugging Face's playbook time them.
LONG = (
    (16384, 8192, 1280), (16384, 1024, 8192), (16384, 8192, 7168), (16384, 3584, 8192), (8192, 8192, 8192),
    (4096, 4096, 4096),
)  # fmt: skip

#: Elements of a loss or a stream.
ELEMENTS = tuple(2**power for power in range(10, 31, 2))
LARGEST_LOSS = 2**26


def cases() -> Iterator[Case]:
    """Returns every case, the ones that tell most first."""
    for n, k in WEIGHTS:
        for m in ROWS:
            yield _few_rows(m, n, k, "bf16")
    for m in ROWS[::3]:
        yield _few_rows(m, 8192, 8192, "fp16")
    yield from long_products()
    for elements in ELEMENTS:
        for dtype in ("fp32", "bf16"):
            yield from _streams(elements, dtype)
            if elements <= LARGEST_LOSS:
                yield from _squared(elements, dtype)


def long_products() -> Iterator[Case]:
    """Returns products that fill the GPU, in the two formats of 16 bits."""
    for size in LONG:
        for dtype in ("bf16", "fp16"):
            case = product(*size, dtype, "nt", ROUND)
            yield replace(case, family="mm_halves")


def _few_rows(m: int, n: int, k: int, dtype: str) -> Case:
    return replace(product(m, n, k, dtype, "nt", ROUND), family="mm_rows")


def _streams(elements: int, dtype: str) -> Iterator[Case]:
    def add(on: Tensors) -> Call:
        x, y = (on.positive(elements, dtype=dtype) for _ in range(2))
        return lambda: torch.add(x, y)

    def copy(on: Tensors) -> Call:
        x = on.positive(elements, dtype=dtype)
        out = torch.empty_like(x)
        return lambda: out.copy_(x)

    for name, make in (("add", add), ("copy_", copy)):
        setting = {"dtype": dtype}
        yield Case("streams", name, (elements,), make, setting, round=ROUND, graph=True)


def _squared(elements: int, dtype: str) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = on.normal(elements, dtype=dtype, grad=True)
        y = on.positive(elements, dtype=dtype)
        return (lambda: F.mse_loss(x, y)), (x,)

    return both("squared", "mse_loss", (elements,), build, {"dtype": dtype}, ROUND)
