"""Operations of kinds that a second twenty programs showed to be off (`lab/cases/later`).

Dilated convolutions, Gram matrices (batches of long products), patches by unfolding, attention over few keys or by few
queries, layers in half precision for many small pictures, pictures resampled with channels last, narrow layer norms,
counts and maxima along short rows. Sizes are grids, and no program's. Every kind is a family of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Call, Case, Tensors, both

ROUND = 7
#: Batch, channels in and out, length, kernel, dilation.
ROWS = (
    (32, 128, 128, 512, 3, 1), (32, 128, 128, 512, 3, 4), (32, 128, 128, 512, 3, 16), (64, 96, 96, 256, 5, 2),
    (64, 96, 96, 256, 5, 8), (16, 256, 256, 1024, 3, 2), (16, 256, 256, 1024, 3, 32), (8, 64, 128, 8192, 2, 4),
    (8, 64, 128, 8192, 2, 256), (32, 192, 192, 512, 5, 4), (32, 192, 192, 512, 5, 16), (16, 512, 512, 256, 3, 2),
)  # fmt: skip
#: The same of pictures: batch, channels in and out, side, kernel, dilation.
PICTURES = (
    (8, 128, 128, 64, 3, 2),
    (8, 256, 256, 32, 3, 4),
    (4, 512, 512, 32, 3, 2),
    (16, 64, 64, 64, 3, 2),
)
#: Batch, rows, columns, depth.
GRAMS = (
    (1, 32, 32, 65536), (2, 64, 64, 65536), (4, 64, 64, 16384), (8, 64, 64, 262144), (2, 128, 128, 65536),
    (4, 128, 128, 16384), (8, 256, 256, 16384), (2, 256, 256, 4096), (16, 64, 64, 4096), (4, 512, 512, 4096),
    (64, 32, 32, 4096), (32, 128, 128, 8192),
)  # fmt: skip
#: Batch, channels, side, kernel, stride.
PATCHES = (
    (32, 3, 128, 8, 8),
    (64, 3, 192, 16, 16),
    (16, 3, 256, 32, 32),
    (32, 64, 32, 3, 1),
    (8, 16, 128, 3, 1),
    (16, 8, 64, 4, 4),
)
#: Batch, heads, queries, keys, width of heads.
CROSS = (
    (8, 1, 8192, 128, 32), (8, 2, 4096, 256, 32), (4, 8, 4096, 64, 64), (2, 8, 8192, 77, 64), (16, 4, 1024, 64, 32),
    (4, 1, 16384, 128, 64), (8, 5, 1024, 256, 32), (8, 8, 100, 1024, 32), (4, 8, 300, 4096, 32), (16, 8, 64, 2048, 64),
    (2, 16, 4096, 512, 64), (1, 8, 16384, 1024, 64),
)  # fmt: skip
#: Batch, channels in and out, side, kernel, stride: many small pictures.
SMALL = (
    (512, 64, 64, 32, 3, 1), (2048, 64, 64, 16, 3, 1), (1024, 128, 128, 16, 3, 1), (1024, 96, 192, 16, 3, 2),
    (1024, 256, 256, 8, 3, 1), (2048, 128, 256, 8, 3, 2), (1024, 512, 512, 4, 3, 1), (512, 128, 128, 32, 3, 1),
    (1024, 3, 64, 32, 3, 1), (256, 64, 64, 64, 3, 1),
)  # fmt: skip
#: Batch, channels, side, factor: resampled with channels last.
RESAMPLED = (
    (4, 128, 32, 4),
    (8, 64, 64, 2),
    (4, 256, 64, 2),
    (8, 128, 16, 8),
    (2, 512, 32, 4),
)
#: Rows, width.
NARROW = (
    (262144, 32),
    (131072, 64),
    (65536, 128),
    (65536, 160),
    (32768, 192),
    (524288, 64),
)
SHORT = ((2097152, 16), (1048576, 32), (4194304, 8), (524288, 24), (2097152, 10))


def cases() -> Iterator[Case]:
    shape: tuple[int, ...]
    yield from _convolutions()
    for shape in GRAMS:
        for dtype in ("fp32", "tf32", "bf16"):
            for layout in ("nn", "nt", "tn"):
                make = _product(shape, dtype, layout)
                setting = {"dtype": dtype, "layout": layout}
                yield Case("bmm_long", "bmm", shape, make, setting, round=ROUND)
    for shape in PATCHES:
        for dtype in ("fp32", "bf16"):
            build = _patches(shape, dtype)
            yield from both("patches", "unfold", shape, build, {"dtype": dtype}, ROUND)
    for shape in CROSS:
        for dtype in ("fp16", "bf16"):
            build = _cross(shape, dtype)
            setting = {"dtype": dtype, "backend": "cudnn"}
            yield from both("attention_cross", "sdpa", shape, build, setting, ROUND)
    for shape in RESAMPLED:
        for dtype in ("fp32", "bf16"):
            build = _resampled(shape, dtype)
            yield from both("resample_last", "bilinear", shape, build, {"dtype": dtype}, ROUND)  # fmt: skip
    for shape in NARROW:
        build = _norm(shape)
        yield from both("layer_norm_narrow", "layer_norm", shape, build, {"dtype": "fp32"}, ROUND)  # fmt: skip
    for shape in SHORT:
        for name, function in OF_ROWS.items():
            make = _of_rows(function, shape)
            yield Case("short_rows", name, shape, make, {"dtype": "fp32"}, round=ROUND)


def _convolutions() -> Iterator[Case]:
    for dims, sizes in ((1, ROWS), (2, PICTURES)):
        for batch, c, k, side, kernel, dilation in sizes:
            size = (batch, c, k, side, kernel, dilation)
            for dtype in ("tf32", "bf16"):
                build = _conv(dims, (batch, c, k, side, kernel, 1, dilation), dtype)
                yield from both("conv_dilated", f"conv{dims}d", size, build, {"dtype": dtype}, ROUND)  # fmt: skip
    for size in SMALL:
        for dtype in ("tf32", "bf16"):
            build = _conv(2, (*size, 1), dtype)
            yield from both("conv_small_pictures", "conv2d", size, build, {"dtype": dtype}, ROUND)  # fmt: skip


Build = Callable[[Tensors], tuple[Call, Sequence[Any]]]


def _conv(dims: int, size: Sequence[int], dtype: str) -> Build:
    batch, c, k, side, kernel, stride, dilation = size
    padding = dilation * (kernel - 1) // 2
    function = F.conv1d if dims == 1 else F.conv2d

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        x = on.normal(batch, c, *[side] * dims, dtype=dtype, grad=True)
        w = on.normal(k, c, *[kernel] * dims, dtype=dtype, grad=True)
        return lambda: function(x, w, None, stride, padding, dilation), [x, w]

    return build


def _product(shape: Sequence[int], dtype: str, layout: str) -> Callable[[Tensors], Call]:  # fmt: skip
    batch, m, n, k = shape

    def operand(on: Tensors, rows: int, columns: int, way: str) -> Any:
        if way == "n":
            return on.normal(batch, rows, columns, dtype=dtype)
        return on.normal(batch, columns, rows, dtype=dtype).transpose(1, 2)

    def make(on: Tensors) -> Call:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        x, y = operand(on, m, k, layout[0]), operand(on, k, n, layout[1])
        return lambda: torch.bmm(x, y)

    return make


def _patches(shape: Sequence[int], dtype: str) -> Build:
    batch, c, side, kernel, stride = shape

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = on.normal(batch, c, side, side, dtype=dtype, grad=True)
        return lambda: F.unfold(x, kernel, padding=kernel // 2 if stride == 1 else 0, stride=stride), [x]  # fmt: skip

    return build


def _cross(shape: Sequence[int], dtype: str) -> Build:
    batch, heads, queries, keys, width = shape

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        q, k, v = (
            on.normal(batch, length, heads, width, dtype=dtype).transpose(1, 2).detach().requires_grad_()
            for length in (queries, keys, keys)
        )  # fmt: skip

        def call() -> Any:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):  # fmt: skip
                return F.scaled_dot_product_attention(q, k, v)

        return call, [q, k, v]

    return build


def _resampled(shape: Sequence[int], dtype: str) -> Build:
    batch, c, side, factor = shape

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = on.normal(batch, side, side, c, dtype=dtype).permute(0, 3, 1, 2)
        x = x.detach().requires_grad_()
        return lambda: F.interpolate(x, scale_factor=factor, mode="bilinear"), [x]

    return build


def _norm(shape: Sequence[int]) -> Build:
    rows, width = shape

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x, w, b = (on.normal(*s, dtype="fp32", grad=True) for s in ((rows, width), (width,), (width,)))  # fmt: skip
        return lambda: F.layer_norm(x, (width,), w, b), [x, w, b]

    return build


OF_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "amax": lambda x, mask: x.amax(-1),
    "max": lambda x, mask: x.max(-1),
    "count": lambda x, mask: mask.sum(-1, keepdim=True),
    "argmax": lambda x, mask: x.argmax(-1),
}


def _of_rows(function: Callable[..., Any], shape: Sequence[int]) -> Callable[[Tensors], Call]:  # fmt: skip
    def make(on: Tensors) -> Call:
        x, mask = on.normal(*shape, dtype="fp32"), on.mask(*shape)
        return lambda: function(x, mask)

    return make
