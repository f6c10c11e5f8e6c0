"""Operations that move: copies of other strides, cat and split, index and scatter, sort, host to GPU and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Call, Case, Tensors

ROWS = ((256, 512), (4096, 768), (8192, 2048), (16384, 4096), (8192, 14336))
HEADS = (
    (1, 512, 8, 128),
    (2, 2048, 16, 64),
    (4, 2048, 32, 64),
    (8, 1024, 16, 128),
    (2, 4096, 32, 128),
)
PICTURES = (
    (32, 64, 56),
    (128, 256, 56),
    (128, 512, 28),
    (16, 320, 64),
    (128, 3, 224),
    (64, 2048, 7),
)

OF_ROWS: dict[str, Callable[[Any], Any]] = {
    "contiguous_transposed": lambda x: x.t().contiguous(),
    "contiguous_first_half": lambda x: x[:, : x.shape[1] // 2].contiguous(),
    "contiguous_even_rows": lambda x: x[::2].contiguous(),
    "contiguous_even_columns": lambda x: x[:, ::2].contiguous(),
    "cat_0_of_2": lambda x: torch.cat((x, x)),
    "cat_1_of_2": lambda x: torch.cat((x, x), 1),
    "cat_1_of_3": lambda x: torch.cat((x, x, x), 1),
    "cat_0_of_16": lambda x: torch.cat(x.chunk(16)),
    "stack_0_of_4": lambda x: torch.stack((x, x, x, x)),
    "stack_1_of_2": lambda x: torch.stack((x, x), 1),
    "stack_last_of_2": lambda x: torch.stack((x, x), -1),
    "repeat_interleave_0": lambda x: x.repeat_interleave(2, 0),
    "repeat_2": lambda x: x.repeat(2, 1),
    "flip_0": lambda x: x.flip(0),
    "roll_0": lambda x: x.roll(3, 0),
    "tril": torch.tril,
    "triu": lambda x: x.triu(1),
    "constant_pad": lambda x: F.pad(x, (0, 8)),
    "cast_transposed": lambda x: x.t().to(
        torch.float32, memory_format=torch.contiguous_format
    ),
    "copy_into_half": lambda x: x[:, : x.shape[1] // 2].copy_(x[:, x.shape[1] // 2 :]),
    "split_copies": lambda x: [
        part.contiguous() for part in x.split(x.shape[1] // 4, 1)
    ],
    "slice_backward": lambda x: torch.ops.aten.slice_backward(
        x, [x.shape[0], 2 * x.shape[1]], 1, 0, x.shape[1], 1
    ),
    "topk_2": lambda x: x.topk(2),
    "topk_8": lambda x: x.topk(8),
    "sort_last": lambda x: x.sort(-1),
    "cumsum_last": lambda x: x.cumsum(-1),
    "cumsum_0": lambda x: x.cumsum(0),
}
OF_HEADS: dict[str, Callable[[Any], Any]] = {
    "heads_to_front": lambda x: x.transpose(1, 2).contiguous(),
    "heads_merged": lambda x: (
        x.transpose(1, 2)
        .contiguous()
        .transpose(1, 2)
        .reshape(x.shape[0], x.shape[1], -1)
    ),
    "length_to_front": lambda x: x.transpose(0, 1).contiguous(),
    "keys_transposed": lambda x: x.permute(0, 2, 3, 1).contiguous(),
    "repeat_kv": lambda x: (
        x.transpose(1, 2)[:, :, None]
        .expand(-1, -1, 4, -1, -1)
        .reshape(x.shape[0], -1, x.shape[1], x.shape[3])
    ),
    "cat_heads_halves": lambda x: torch.cat(
        (x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1
    ),
}
OF_PICTURES: dict[str, Callable[[Any], Any]] = {
    "to_channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "flatten_patches": lambda x: x.flatten(2).transpose(1, 2).contiguous(),
    "windows": lambda x: x.permute(0, 2, 3, 1).roll((3, 3), (1, 2)).contiguous(),
}


def cases() -> Iterator[Case]:
    yield from _copies()
    yield from _by_index()
    yield from _sorts()
    yield from _host_copies()


def _copies() -> Iterator[Case]:
    for at, size in enumerate(ROWS):
        for name, function in OF_ROWS.items():
            for dtype in ("bf16", "fp32"):
                round = 0 if dtype == "bf16" and at in (1, 3) else 1
                yield Case(
                    "copy",
                    name,
                    size,
                    _of_one(function, size, dtype),
                    {"dtype": dtype},
                    round=round,
                )
    for table, sizes in ((OF_HEADS, HEADS), (OF_PICTURES, PICTURES)):
        for at, shape in enumerate(sizes):
            full = (*shape, shape[2]) if table is OF_PICTURES else shape
            for name, function in table.items():
                for dtype in ("bf16", "fp32"):
                    make = _of_one(function, full, dtype)
                    yield Case(
                        "copy",
                        name,
                        shape,
                        make,
                        {"dtype": dtype},
                        round=0 if dtype == "bf16" and at % 2 else 1,
                    )


def _of_one(
    function: Callable[[Any], Any], shape: tuple[int, ...], dtype: str
) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        x = on.normal(*shape, dtype=dtype)
        return lambda: function(x)

    return make


def _wide(ids: Any, width: int) -> Any:
    return ids[:, None].expand(-1, width)


# x: rows by width; ids: as many as `picks`, of the rows; y: picks by width.
BY_INDEX: dict[str, Callable[[Any, Any, Any], Any]] = {
    "index_rows": lambda x, ids, y: x[ids],
    "index_select": lambda x, ids, y: x.index_select(0, ids),
    "index_add_": lambda x, ids, y: x.index_add_(0, ids, y),
    "index_put_accumulate": lambda x, ids, y: x.index_put_((ids,), y, accumulate=True),
    "index_put": lambda x, ids, y: x.index_put_((ids,), y),
    "gather_rows": lambda x, ids, y: x.gather(0, _wide(ids, x.shape[1])),
    "scatter_add_rows": lambda x, ids, y: x.scatter_add_(0, _wide(ids, x.shape[1]), y),
    "scatter_rows": lambda x, ids, y: x.scatter_(0, _wide(ids, x.shape[1]), y),
    "index_copy_": lambda x, ids, y: x.index_copy_(0, ids, y),
    "gather_last": lambda x, ids, y: y.gather(1, (ids % y.shape[1])[:, None]),
    "scatter_last": lambda x, ids, y: y.scatter_(1, (ids % y.shape[1])[:, None], 0.0),
    "masked_select": lambda x, ids, y: y[ids % 2 == 0],
    "index_mask_put": lambda x, ids, y: y.masked_fill_((ids % 2 == 0)[:, None], 0.0),
    "embedding_dense_backward": lambda x, ids, y: (
        torch.ops.aten.embedding_dense_backward(y, ids, x.shape[0], -1, False)
    ),
}


#: Rows, width and picks where every token goes to a few experts.
OF_EXPERTS = (
    (2048, 2048, 4096), (4096, 2048, 4096), (2048, 1024, 8192), (8192, 1024, 8192), (4096, 4096, 8192),
    (8192, 2048, 65536),
)  # fmt: skip


def _by_index() -> Iterator[Case]:
    for rows, width, picks in (
        (512, 768, 512),
        (4096, 2048, 8192),
        (16384, 2048, 32768),
        (8192, 4096, 16384),
        (32768, 1024, 65536),
        (128256, 64, 16384),
        (2048, 7168, 16384),
        (1_000_000, 16, 262144),
        *OF_EXPERTS,
    ):
        for name, function in BY_INDEX.items():
            for dtype in ("bf16", "fp32"):
                for skewed in (False, True):
                    if skewed and not ("add" in name or "accumulate" in name):
                        continue
                    make = _picking(function, rows, width, picks, dtype, skewed)
                    setting = {"dtype": dtype, "skewed": skewed}
                    round = (
                        0
                        if dtype == "bf16" and not skewed and rows in (512, 16384, 8192)
                        else 1
                    )
                    yield Case(
                        "index", name, (rows, width, picks), make, setting, round=round
                    )


def _picking(
    function: Callable[..., Any],
    rows: int,
    width: int,
    picks: int,
    dtype: str,
    skewed: bool,
) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        x, y = on.normal(rows, width, dtype=dtype), on.normal(picks, width, dtype=dtype)
        ids = on.skewed(rows, picks) if skewed else on.below(rows, picks)
        return lambda: function(x, ids, y)

    return make


OF_IDS: dict[str, Callable[[Any], Any]] = {
    "sort": torch.sort,
    "argsort": torch.argsort,
    "argsort_stable": lambda x: torch.argsort(x, stable=True),
    "unique": torch.unique,
    "bincount": lambda x: torch.bincount(x, minlength=128),
    "one_hot": lambda x: F.one_hot(x, 128),
    "cumsum": lambda x: x.cumsum(0),
    "histc": lambda x: torch.histc(x.float(), bins=128, min=0, max=127),
    "nonzero": lambda x: (x == 3).nonzero(),
    "eq_outer": lambda x: x[:1024, None] == x[None, :1024],
    "item": lambda x: x[0].item(),
    "searchsorted": lambda x: torch.searchsorted(x, x),
    "scatter_mask": lambda x: torch.zeros(x.shape[0], 128, device=x.device).scatter_(
        1, x[:, None], 1.0
    ),
}
ROUTERS = ((512, 8), (8192, 8), (8192, 64), (32768, 128), (4096, 256), (65536, 64))
OF_ROUTER: dict[str, Callable[[Any], Any]] = {
    "topk_router_2": lambda x: x.topk(2, -1),
    "topk_router_8": lambda x: x.topk(8, -1),
    "sort_router": lambda x: x.sort(-1),
    "softmax_router": lambda x: x.softmax(-1),
    "argmax_router": lambda x: x.argmax(-1),
}


def _sorts() -> Iterator[Case]:
    for size in (1024, 8192, 65536, 524288, 4194304):
        for name, function in OF_IDS.items():

            def make(
                on: Tensors, size: int = size, function: Callable[[Any], Any] = function
            ) -> Call:
                ids = on.below(128, size)
                return lambda: function(ids)

            yield Case(
                "sort",
                name,
                (size,),
                make,
                {"dtype": "int64"},
                round=0 if size in (8192, 65536) else 1,
            )
        yield Case(
            "sort",
            "sort_floats",
            (size,),
            _of_one(torch.sort, (size,), "fp32"),
            {"dtype": "fp32"},
            round=1,
        )
        for name, count in (("arange", size), ("randperm", size)):
            yield Case(
                "sort", name, (size,), _made(name, count), {"dtype": "int64"}, round=1
            )
    for size2 in ROUTERS:
        for name, function in OF_ROUTER.items():
            for dtype in ("bf16", "fp32"):
                yield Case(
                    "sort",
                    name,
                    size2,
                    _of_one(function, size2, dtype),
                    {"dtype": dtype},
                    round=0 if dtype == "fp32" else 1,
                )


def _made(name: str, count: int) -> Callable[[Tensors], Call]:
    return lambda on: lambda: getattr(torch, name)(count, device=on.device)


def _host_copies() -> Iterator[Case]:
    """Bytes between host and GPU, from memory that is locked and that is not, and within the GPU."""
    for power in range(8, 31, 2):
        size = 2**power
        for way in (
            "to_gpu",
            "to_host",
            "to_gpu_pageable",
            "to_host_pageable",
            "within",
        ):
            if power <= 28 or "pageable" not in way:
                round = 1 if "pageable" in way or power % 4 else 0
                yield Case(
                    "memcpy",
                    way,
                    (size,),
                    _host_copy(way, size),
                    {"dtype": "uint8"},
                    round=round,
                )


def _host_copy(way: str, size: int) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        there = torch.empty(size, dtype=torch.uint8, device=on.device)
        if way == "within":
            other = torch.empty_like(there)
            return lambda: other.copy_(there)
        pinned = "pageable" not in way and on.device == "cuda"
        here = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        target, source = (there, here) if "to_gpu" in way else (here, there)
        return lambda: target.copy_(source, non_blocking=pinned)

    return make
