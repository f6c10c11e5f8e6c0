"""Operations of sparse attention whose keys an indexer chooses (DeepSeek-V3.2, GLM-5), as transformers 5 writes it.

Scores of all keys in fp32, summed over heads; the 2,048 largest; a mask of the others; attention with a mask that every
query has for itself, heads of 192 and 128 or of 256. Sizes are grids, and no program's. Every kind is a family.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import DTYPES, Call, Case, Tensors, both

CHOSEN = 2048
#: Queries, keys.
CHOICES = (
    (1024, 4096), (1024, 16384), (1024, 65536), (1024, 131072), (2048, 2048), (2048, 8192), (2048, 32768),
    (4096, 4096), (4096, 8192), (4096, 16384), (8192, 4096), (8192, 8192), (8192, 32768), (512, 3072),
)  # fmt: skip
#: Queries, heads of the indexer, keys; its heads are 128 wide.
SCORES = (
    (512, 64, 512), (1024, 64, 1024), (1024, 32, 4096), (2048, 32, 2048), (2048, 64, 2048), (4096, 32, 4096),
    (4096, 64, 4096), (1024, 64, 16384), (1024, 32, 32768), (8192, 32, 2048),
)  # fmt: skip
WIDTH = 128
#: Samples, heads, tokens; widths of queries and of values.
MASKED = (
    (1, 16, 1024, 192, 128), (1, 128, 1024, 192, 128), (1, 64, 2048, 192, 128), (1, 128, 2048, 192, 128),
    (1, 128, 4096, 192, 128), (1, 64, 8192, 192, 128), (1, 16, 1024, 256, 256), (1, 64, 1024, 256, 256),
    (1, 64, 2048, 256, 256), (1, 64, 4096, 256, 256), (1, 32, 8192, 256, 256),
)  # fmt: skip


def cases() -> Iterator[Case]:
    yield from _choices()
    yield from _scores()
    yield from _masked()


def _choices() -> Iterator[Case]:
    for size in CHOICES:
        for dtype in ("fp32", "bf16"):

            def chosen(on: Tensors, size: Any = size, dtype: str = dtype) -> Call:
                x = on.normal(1, *size, dtype=dtype)
                return lambda: x.topk(CHOSEN, -1)

            yield Case("index_topk", "topk", size, chosen, {"dtype": dtype})

        def scattered(on: Tensors, size: Any = size) -> Call:
            rows, keys = size
            x = torch.ones((1, rows, keys), device=on.device, dtype=torch.bool)
            at = torch.rand((1, rows, keys), device=on.device).topk(CHOSEN, -1).indices
            return lambda: x.scatter_(-1, at, False)

        yield Case("index_mask", "scatter", size, scattered, {"dtype": "bool"})
    for rows in (256, 1024, 2048, 4096, 8192):
        for dtype in ("int64", "int32"):

            def sorted_places(
                on: Tensors, rows: int = rows, dtype: str = dtype
            ) -> Call:
                x = on.below(65536, 1, rows, CHOSEN).to(DTYPES[dtype])
                return lambda: x.argsort(-1)

            setting = {"dtype": dtype}
            yield Case("index_sort", "argsort", (rows,), sorted_places, setting)


def _scores() -> Iterator[Case]:
    for rows, heads, keys in SCORES:
        size = rows, heads, keys

        def by_query(on: Tensors, size: Any = size) -> Call:
            rows, heads, keys = size
            q = on.normal(rows, heads, WIDTH, dtype="fp32")
            k = on.normal(keys, WIDTH, dtype="fp32").t().expand(rows, WIDTH, keys)
            return lambda: torch.bmm(q, k)

        def over_heads(on: Tensors, size: Any = size) -> Call:
            rows, heads, keys = size
            w = on.normal(rows, 1, heads, dtype="fp32")
            x = on.normal(rows, heads, keys, dtype="fp32")
            return lambda: torch.bmm(w, x)

        def together(on: Tensors, size: Any = size) -> Call:
            rows, heads, keys = size
            q = on.normal(1, rows * heads, WIDTH, dtype="fp32")
            k = on.normal(1, keys, WIDTH, dtype="fp32")
            return lambda: torch.bmm(q, k.transpose(1, 2))

        for op, make in (
            ("by_query", by_query),
            ("over_heads", over_heads),
            ("together", together),
        ):
            yield Case("index_scores", op, size, make, {"dtype": "fp32"})


def _masked() -> Iterator[Case]:
    for batch, heads, tokens, query, value in MASKED:

        def build(
            on: Tensors, shape: Any = (batch, heads, tokens, query, value)
        ) -> tuple[Call, Sequence[Any]]:
            batch, heads, tokens, query, value = shape
            # Laid out as projections make them: heads lie behind tokens.
            q, k, v = (
                on.normal(batch, tokens, heads, width).transpose(1, 2)
                for width in (query, query, value)
            )
            inputs = [x.detach().requires_grad_(True) for x in (q, k, v)]
            mask = on.mask(batch, 1, tokens, tokens)
            mask |= torch.eye(tokens, dtype=torch.bool, device=on.device)
            mask &= torch.ones_like(mask).tril()
            return lambda: F.scaled_dot_product_attention(
                *inputs, attn_mask=mask
            ), inputs

        size = batch, heads, tokens, query, value
        yield from both("index_attention", "sdpa", size, build, {"dtype": "bf16"})
