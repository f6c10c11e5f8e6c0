"""Operations of small networks, whose kinds twenty programs showed to be off (`lab/cases/later`, `../unseen`).

Convolutions of few channels, small pictures and rows, with strides and gaps; filters' gradients alone, as the first
layer of a network has; sums over short rows and channels of small pictures; products of few rows, columns and places,
single and in batches; recurrent layers of small and of two directions; attention over a few dozen keys; sorts; lists
of one chunk. Sizes are grids, and no program's. Every kind is a family of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from lab.measure.attention import attention
from lab.measure.case import Call, Case, Tensors, both
from lab.measure.domains import Convolution
from lab.measure.kinds import OF_CHANNELS, _of_channels, _ways
from lab.measure.products import _bmm
from lab.measure.strays import _conv

ROUND = 8
#: Batch, channels in and out, side, kernel, stride.
PICTURES = (
    (512, 4, 16, 80, 8, 4), (1024, 3, 32, 64, 8, 4), (256, 4, 32, 96, 8, 4), (128, 1, 32, 64, 5, 2),
    (512, 16, 32, 20, 4, 2), (1024, 32, 64, 15, 4, 2), (256, 32, 64, 24, 4, 2), (128, 32, 32, 24, 4, 2),
    (1024, 64, 64, 7, 3, 1), (512, 32, 64, 9, 3, 1), (128, 64, 64, 11, 3, 1), (2048, 32, 32, 8, 3, 1),
    (16, 64, 64, 14, 3, 2), (32, 64, 64, 7, 3, 2), (64, 32, 32, 28, 3, 2), (32, 48, 48, 16, 3, 2),
    (16, 64, 64, 20, 3, 1), (8, 128, 128, 16, 3, 1), (8, 128, 128, 32, 3, 1), (8, 64, 64, 64, 3, 1),
    (4, 32, 32, 128, 3, 1), (4, 256, 256, 16, 3, 1), (2, 512, 512, 16, 3, 1), (16, 256, 256, 8, 3, 1),
    (32, 512, 512, 4, 3, 1), (64, 16, 16, 32, 3, 1), (256, 16, 32, 32, 3, 1), (256, 8, 16, 28, 3, 1),
    (128, 64, 128, 32, 4, 2), (128, 128, 256, 16, 4, 2), (64, 3, 64, 64, 4, 2), (64, 256, 512, 8, 4, 2),
    (32, 64, 128, 64, 5, 2), (16, 32, 64, 96, 7, 2), (64, 3, 48, 96, 7, 4), (32, 3, 96, 192, 4, 4),
    (32, 96, 192, 48, 2, 2), (16, 192, 384, 24, 2, 2), (32, 3, 192, 128, 8, 8), (16, 3, 384, 192, 16, 16),
    (16, 2, 32, 128, 3, 1), (16, 32, 2, 128, 3, 1), (8, 64, 3, 128, 3, 1), (8, 3, 64, 128, 3, 1),
    (16, 32, 1, 64, 1, 1), (32, 20, 20, 64, 1, 1), (64, 128, 64, 16, 1, 1), (256, 64, 64, 8, 1, 1),
    (16, 64, 128, 32, 1, 2), (64, 128, 256, 28, 1, 2),
)  # fmt: skip
#: Transposed: batch, channels in and out, side, kernel, stride.
ENLARGED = (
    (64, 128, 64, 8, 4, 2), (128, 256, 128, 4, 4, 2), (32, 64, 32, 32, 4, 2), (64, 64, 3, 32, 4, 2),
    (128, 32, 1, 16, 4, 2), (32, 64, 64, 7, 3, 1), (16, 128, 128, 16, 2, 2), (8, 64, 32, 64, 2, 2),
)  # fmt: skip
#: Batch, channels in and out, length, kernel, stride, groups.
ROWS = (
    (32, 64, 64, 256, 3, 1, 1), (32, 32, 32, 1024, 3, 1, 1), (64, 128, 128, 128, 3, 1, 1),
    (16, 256, 256, 256, 3, 1, 1), (8, 512, 512, 512, 3, 1, 1), (16, 64, 128, 2048, 3, 2, 1),
    (16, 128, 256, 1024, 4, 2, 1), (32, 32, 64, 4096, 8, 4, 1), (8, 16, 32, 16384, 16, 8, 1),
    (16, 1, 32, 16000, 9, 1, 1), (16, 1, 64, 16000, 80, 4, 1), (64, 12, 64, 1000, 15, 1, 1),
    (64, 2, 64, 1024, 7, 2, 1), (64, 64, 64, 500, 7, 1, 1), (32, 80, 384, 1000, 3, 1, 1), (16, 192, 192, 400, 5, 1, 1),
    (128, 32, 32, 96, 3, 1, 1), (256, 16, 16, 64, 3, 1, 1), (8, 64, 64, 8192, 2, 1, 1), (8, 128, 128, 4000, 2, 1, 1),
    (8, 256, 1, 4000, 1, 1, 1), (16, 64, 256, 1000, 1, 1, 1), (32, 128, 128, 300, 1, 1, 1),
    (16, 256, 256, 512, 31, 1, 256), (8, 768, 768, 1024, 4, 1, 768), (32, 128, 128, 400, 3, 1, 128),
    (16, 256, 256, 800, 15, 1, 256), (4, 1536, 1536, 2048, 4, 1, 1536), (16, 128, 128, 1000, 5, 1, 16),
)  # fmt: skip
#: Batch, channels in and out, length, kernel, dilation.
GAPS = (
    (16, 64, 64, 1000, 3, 2), (16, 64, 64, 1000, 3, 8), (16, 64, 64, 1000, 3, 64), (8, 128, 128, 4000, 2, 8),
    (8, 128, 256, 4000, 2, 128), (8, 64, 128, 4000, 2, 512), (64, 32, 32, 200, 3, 2), (64, 32, 32, 200, 3, 16),
    (32, 256, 256, 300, 3, 4), (32, 128, 128, 400, 3, 8), (32, 128, 128, 400, 5, 2), (64, 64, 64, 128, 7, 4),
    (16, 512, 512, 200, 3, 3), (32, 128, 128, 700, 3, 32), (8, 32, 32, 8000, 3, 4), (8, 32, 32, 8000, 3, 128),
    (64, 128, 128, 384, 3, 2), (24, 192, 192, 600, 3, 8), (32, 96, 96, 256, 3, 1), (48, 128, 128, 320, 2, 1),
)  # fmt: skip
#: Filters' gradients alone: batch, channels in and out, side, kernel, stride.
FILTERS = (
    (512, 4, 16, 80, 8, 4), (1024, 3, 32, 64, 8, 4), (256, 4, 32, 96, 8, 4), (32, 1, 32, 28, 3, 2),
    (128, 1, 32, 28, 3, 1), (256, 1, 16, 28, 5, 1), (64, 1, 64, 32, 4, 2), (256, 3, 32, 32, 3, 1),
    (1024, 3, 64, 32, 3, 1), (512, 3, 16, 32, 3, 1), (64, 3, 64, 224, 7, 2), (32, 3, 64, 192, 7, 2),
    (64, 3, 32, 192, 3, 2), (16, 3, 64, 128, 3, 1), (8, 3, 64, 256, 3, 1), (64, 3, 96, 192, 4, 4),
    (32, 3, 384, 192, 16, 16), (64, 3, 512, 128, 8, 8), (64, 3, 64, 64, 4, 2), (16, 2, 32, 128, 3, 1),
    (16, 4, 128, 64, 3, 1), (16, 1, 64, 128, 3, 1), (64, 16, 32, 32, 3, 1), (32, 64, 64, 32, 3, 1),
    (32, 128, 256, 16, 3, 2), (64, 64, 128, 28, 1, 1), (16, 256, 256, 16, 3, 1), (64, 12, 48, 56, 3, 1),
)  # fmt: skip
#: Batch, channels, places.
CHANNELS = (
    (16, 64, 49), (32, 64, 196), (64, 64, 16), (128, 32, 64), (64, 32, 784), (256, 16, 196), (512, 64, 81),
    (1024, 32, 225), (16, 256, 256), (8, 128, 1024), (32, 512, 16), (16, 128, 500), (8, 2, 4096), (64, 1, 784),
)  # fmt: skip
#: Results, elements of each, along the last dimension and along the first.
SHORT = (
    (32, 4), (64, 10), (1024, 20), (512, 64), (8192, 6), (16384, 48), (65536, 3), (131072, 12), (32768, 100),
    (4096, 256), (262144, 7), (100000, 64), (256, 1000), (2048, 400), (16, 4096), (4, 65536),
)  # fmt: skip
OF_ROWS: dict[str, Callable[[Any, Any, int], Any]] = {
    "sum": lambda x, mask, dim: x.sum(dim),
    "mean": lambda x, mask, dim: x.mean(dim),
    "amax": lambda x, mask, dim: x.amax(dim),
    "max": lambda x, mask, dim: x.max(dim),
    "argmax": lambda x, mask, dim: x.argmax(dim),
    "var": lambda x, mask, dim: x.var(dim),
    "count": lambda x, mask, dim: mask.sum(dim),
}
#: Rows, outputs, inputs of layers.
LAYERS = (
    (32, 10, 512), (16, 5, 800), (32, 5, 1600), (64, 64, 64), (128, 128, 32), (256, 64, 17), (256, 256, 6),
    (256, 6, 256), (256, 1, 256), (64, 512, 1000), (128, 10, 3200), (512, 512, 2048), (1024, 256, 3136),
    (1024, 16, 512), (1024, 512, 256), (2048, 64, 128), (4096, 32, 32), (4096, 128, 3), (8192, 2, 128),
    (16384, 64, 64), (16384, 40, 256), (96, 96, 1500), (48, 300, 300), (200, 50, 768),
)  # fmt: skip
#: Batch, rows, columns, depth.
BATCHES = (
    (16, 32, 32, 32), (64, 8, 8, 64), (256, 4, 4, 16), (1024, 16, 16, 16), (4096, 3, 3, 3), (16384, 8, 8, 8),
    (65536, 3, 3, 3), (512, 1, 64, 64), (512, 64, 1, 64), (2048, 1, 32, 128), (64, 64, 64, 64), (256, 20, 20, 32),
    (8, 128, 128, 64), (32, 100, 10, 50), (4, 512, 16, 512), (16, 1024, 40, 20), (1024, 32, 32, 8),
    (8192, 4, 16, 64), (128, 128, 8, 16), (32, 5, 64, 1600),
)  # fmt: skip
#: Steps, batch, inputs, width, layers, directions.
RECURRENT = (
    (20, 32, 64, 128, 1, 1), (50, 64, 100, 200, 1, 2), (100, 16, 128, 256, 2, 2), (30, 128, 300, 300, 1, 2),
    (64, 32, 256, 512, 1, 1), (200, 8, 64, 64, 1, 1), (40, 64, 128, 128, 2, 1), (16, 256, 64, 256, 1, 1),
)  # fmt: skip
#: Batch, heads, key and value heads, length, width of heads.
ATTENTION = (
    (96, 12, 12, 56, 64), (48, 16, 16, 200, 32), (128, 6, 6, 64, 64), (64, 12, 12, 100, 64), (32, 8, 8, 150, 32),
    (16, 8, 8, 80, 32), (8, 8, 8, 300, 32), (4, 8, 8, 600, 32), (64, 4, 4, 20, 64), (8, 12, 12, 256, 64),
    (4, 6, 6, 128, 64), (2, 16, 16, 400, 64),
)  # fmt: skip
#: Rows, elements of each that are sorted.
SORTED = (
    (1, 1000), (1, 3000), (1, 6000), (1, 12000), (1, 50000), (1, 200000), (1, 1000000), (64, 1000), (256, 300),
    (1024, 1500), (16384, 30), (65536, 100), (8, 30000), (4096, 1000),
)  # fmt: skip
OF_SORTED: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: x.sort(-1),
    "argsort": lambda x: x.argsort(-1),
    "topk": lambda x: x.topk(16, -1),
    "cumsum": lambda x: x.cumsum(-1),
}
#: Tensors, elements of each, in lists.
LISTS = (
    (1, 10000), (1, 30000), (1, 60000), (1, 200000), (1, 800000), (6, 3000), (10, 20000), (10, 60000),
    (30, 50000), (60, 5000), (200, 1000), (20, 300000),
)  # fmt: skip
OF_LISTS: dict[str, Callable[[list[Any], list[Any], list[Any]], Any]] = {
    "_foreach_mul_scalar_": lambda x, y, z: torch._foreach_mul_(x, 0.999),
    "_foreach_add_list_": lambda x, y, z: torch._foreach_add_(x, y),
    "_foreach_lerp_": lambda x, y, z: torch._foreach_lerp_(x, y, 0.1),
    "_foreach_addcmul_": lambda x, y, z: torch._foreach_addcmul_(x, y, z, 0.1),
    "_foreach_addcdiv_": lambda x, y, z: torch._foreach_addcdiv_(x, y, z, 0.1),
    "_foreach_sqrt": lambda x, y, z: torch._foreach_sqrt(z),
    "_foreach_norm": lambda x, y, z: torch._foreach_norm(x),
}
#: Batch, channels, side of pictures with channels last.
LAST = (
    (16, 128, 96), (64, 64, 56), (32, 256, 28), (128, 512, 14), (8, 96, 128), (32, 48, 112), (16, 192, 40),
    (64, 16, 64), (8, 512, 48), (256, 128, 8), (4, 32, 256), (96, 384, 10),
)  # fmt: skip
OF_LAST: dict[str, Callable[[Any, Any], Any]] = {
    "bias": lambda x, bias: x.add_(bias),
    "bias_gradient": lambda x, bias: x.sum((0, 2, 3)),
    "pooled": lambda x, bias: x.mean((2, 3)),
}
#: Batch, heads, length, width of heads, that lie as (batch, length, heads, width).
HEADS = (
    (4, 16, 1024, 64), (2, 32, 2048, 128), (8, 12, 512, 64), (16, 8, 256, 32), (1, 8, 4096, 128), (4, 4, 1000, 64),
)  # fmt: skip
OF_HEADS: dict[str, Callable[[Any, Any], Any]] = {
    "times_places": lambda x, cos: x * cos,
    "every_second": lambda x, cos: x[..., ::2] * cos[..., ::2],
    "every_second_first": lambda x, cos: x[..., ::2] * cos[..., : cos.shape[-1] // 2],
    "halves": lambda x, cos: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1),
    "together": lambda x, cos: torch.stack((x[..., ::2], x[..., 1::2]), -1),
}  # fmt: skip
#: Batch, length, width of running sums along the length.
RUNNING = (
    (32, 64, 512),
    (8, 256, 768),
    (1, 64, 4096),
    (16, 1000, 16),
    (4, 128, 64),
    (256, 100, 2),
)
#: Rows of bytes, and how many of them are picked.
BYTES = (
    (20000, 2873, 768),
    (50000, 7056, 512),
    (10000, 28224, 256),
    (100000, 100, 4096),
)


def later_cases() -> Iterator[Case]:
    """Kinds that the first of these rows left open."""
    for at_last in LAST:
        for dtype in ("fp16", "bf16", "fp32"):
            for name, function in OF_LAST.items():
                last = _last(function, at_last, dtype)
                yield Case("last_channels", name, at_last, last, {"dtype": dtype}, round=ROUND)  # fmt: skip
    for heads in HEADS:
        for dtype in ("bf16", "fp32"):
            for name, function in OF_HEADS.items():
                turned = _heads(function, heads, dtype)
                yield Case("turned_heads", name, heads, turned, {"dtype": dtype}, round=ROUND)  # fmt: skip
    for running in RUNNING:
        for name in ("cumsum", "flip"):
            across = _across(name, running)
            yield Case("running_across", name, running, across, {"dtype": "fp32"}, round=ROUND)  # fmt: skip
    for picked in BYTES:
        yield Case("picked_bytes", "index", picked, _bytes(picked), {"dtype": "uint8"}, round=ROUND)  # fmt: skip


def _last(function: Callable[..., Any], size: Sequence[int], dtype: str) -> Callable[[Tensors], Call]:  # fmt: skip
    batch, channels, side = size

    def make(on: Tensors) -> Call:
        x = on.normal(batch, side, side, channels, dtype=dtype).permute(0, 3, 1, 2)
        bias = on.normal(1, channels, 1, 1, dtype=dtype)
        return lambda: function(x, bias)

    return make


def _heads(function: Callable[..., Any], size: tuple[int, ...], dtype: str) -> Callable[[Tensors], Call]:  # fmt: skip
    batch, heads, length, width = size

    def make(on: Tensors) -> Call:
        x = on.normal(batch, length, heads, width, dtype=dtype).transpose(1, 2)
        cos = on.normal(length, width, dtype=dtype)
        return lambda: function(x, cos)

    return make


def _across(name: str, size: tuple[int, ...]) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        x = on.normal(*size, dtype="fp32")
        return lambda: x.cumsum(1) if name == "cumsum" else x.flip(1)

    return make


def _bytes(size: tuple[int, int, int]) -> Callable[[Tensors], Call]:
    rows, width, count = size

    def make(on: Tensors) -> Call:
        x = on.below(200, rows, width).to(torch.uint8)
        ids = on.below(rows, count)
        return lambda: x[ids]

    return make


def cases() -> Iterator[Case]:
    yield from _convolutions()
    yield from _sums()
    yield from _products()
    for size in RECURRENT:
        for name, module in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
            for dtype in ("fp32", "bf16"):
                build = _network(module, size, dtype)
                setting = {"dtype": dtype, "directions": size[-1]}
                yield from both("recurrent_small", name, size, build, setting, ROUND)
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("efficient", {"dtype": "fp32"}),
        ("efficient", {"dtype": "fp32", "dropout": 0.1}),
        ("cudnn", {}),
    )
    for shape in ATTENTION:
        for backend, options in kinds:
            setting = {"causal": False, **options}
            for case in attention(shape, backend, setting, ROUND):
                yield replace(case, family="attention_little")
    yield from _sorts()
    for many in LISTS:
        for dtype in ("fp32", "bf16"):
            for name, changes in OF_LISTS.items():
                make = _on_lists(changes, many, dtype)
                whole = (many[0], many[0] * many[1])
                yield Case("foreach_small", name, whole, make, {"dtype": dtype}, round=ROUND)  # fmt: skip
    yield from later_cases()


def _convolutions() -> Iterator[Case]:
    layers = (
        ("conv_small", [Convolution(2, *size) for size in PICTURES]),
        ("conv_small", [Convolution(2, *size, 1, True) for size in ENLARGED]),
        ("conv_small_rows", [Convolution(1, *size) for size in ROWS]),
    )
    for family, sizes in layers:
        for layer in sizes:
            name = f"conv{'_transpose' * layer.transposed}{layer.dims}d"
            for dtype in ("tf32", "bf16"):
                build = _layer(layer, dtype)
                yield from both(family, name, layer.size, build, {"dtype": dtype}, ROUND)  # fmt: skip
    for batch, c, k, side, kernel, dilation in GAPS:
        gap = (batch, c, k, side, kernel, dilation)
        for dtype in ("tf32", "bf16"):
            build = _conv(1, (batch, c, k, side, kernel, 1, dilation), dtype)
            yield from both("conv_gaps", "conv1d", gap, build, {"dtype": dtype}, ROUND)
    for size in FILTERS:
        for dtype in ("tf32", "bf16"):
            make = _filters(Convolution(2, *size), dtype)
            setting = {"dtype": dtype, "mask": "filter"}
            yield Case("conv_filters", "conv2d", (2, *size, 1), make, setting, "bwd", ROUND)  # fmt: skip


def _layer(
    layer: Convolution, dtype: str
) -> Callable[[Tensors], tuple[Call, Sequence[Any]]]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        x, weight = layer.operands(on, dtype)
        return lambda: layer.call(x, weight), [x, weight]

    return build


def _filters(layer: Convolution, dtype: str) -> Callable[[Tensors], Call]:
    """The gradient of the filter, of a layer whose pictures need none."""

    def make(on: Tensors) -> Call:
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        x, weight = layer.operands(on, dtype)
        x = x.detach()
        out = layer.call(x, weight)
        gradient = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, [weight], gradient, retain_graph=True)

    return make


def _sums() -> Iterator[Case]:
    for size in CHANNELS:
        for dtype in ("fp32", "bf16"):
            for name, function in OF_CHANNELS.items():
                build = _of_channels(function, size, dtype)
                yield Case("channel_small", name, size, build, {"dtype": dtype}, round=ROUND)  # fmt: skip
    for rows, columns in SHORT:
        for dim in (-1, 0):
            for name, sums in OF_ROWS.items():
                make = _of_rows(sums, (rows, columns), dim)
                setting = {"dtype": "fp32", "dim": dim}
                yield Case("reduction_small", name, (rows, columns), make, setting, round=ROUND)  # fmt: skip


def _of_rows(function: Callable[..., Any], shape: tuple[int, int], dim: int) -> Callable[[Tensors], Call]:  # fmt: skip
    """Over the last dimension as (results, elements), over the first of (elements, results)."""
    sizes = shape if dim == -1 else shape[::-1]

    def make(on: Tensors) -> Call:
        x, mask = on.normal(*sizes, dtype="fp32"), on.mask(*sizes)
        return lambda: function(x, mask, dim)

    return make


def _products() -> Iterator[Case]:
    for rows, out, into in LAYERS:
        for dtype in ("fp32", "tf32", "bf16"):
            yield from _ways("mm_little", rows, out, into, dtype)
    for batch, m, n, k in BATCHES:
        for dtype in ("fp32", "bf16"):
            for layout in ("nn", "nt", "tn"):
                case = _bmm(batch, m, n, k, dtype, layout, ROUND)
                yield replace(case, family="bmm_little", graph=False)


def _network(
    module: Callable[..., Any], size: tuple[int, ...], dtype: str
) -> Callable[[Tensors], tuple[Call, Sequence[Any]]]:
    steps, batch, inputs, width, layers, directions = size

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = on.normal(steps, batch, inputs, dtype=dtype, grad=True)
        options = {"device": x.device, "dtype": x.dtype}
        network = module(inputs, width, layers, bidirectional=directions == 2, **options)  # fmt: skip
        return lambda: network(x)[0], [x, *network.parameters()]

    return build


def _sorts() -> Iterator[Case]:
    for shape in SORTED:
        for name, function in OF_SORTED.items():
            for dtype in ("fp32", "int64"):
                if dtype == "int64" and name in ("topk", "argsort"):
                    continue
                make = _of_one(function, shape, dtype)
                yield Case("sort_small", name, shape, make, {"dtype": dtype}, round=ROUND)  # fmt: skip


def _of_one(function: Callable[..., Any], shape: tuple[int, int], dtype: str) -> Callable[[Tensors], Call]:  # fmt: skip
    sizes = shape[1:] if shape[0] == 1 else shape

    def make(on: Tensors) -> Call:
        whole = dtype == "int64"
        x = on.below(100000, *sizes) if whole else on.normal(*sizes, dtype=dtype)
        return lambda: function(x)

    return make


def _on_lists(
    function: Callable[..., Any], many: tuple[int, int], dtype: str
) -> Callable[[Tensors], Call]:
    tensors, elements = many

    def make(on: Tensors) -> Call:
        lists = [[on.positive(elements, dtype=dtype) for _ in range(tensors)] for _ in range(3)]  # fmt: skip
        return lambda: function(*lists)

    return make
