"""Operations whose kinds twenty programs showed to be off (`lab/cases/unseen`).

Attention over short sequences, gradients of a filter for every picture, convolutions of volumes, products whose
rows lie at no multiple of 16 bytes or are long in 32 bits, recurrent layers behind a full queue, pictures in two memory
formats, biases of channels. Sizes are grids, and no program's. Every kind is a family of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from lab.measure.attention import attention
from lab.measure.case import Call, Case, Tensors, both
from lab.measure.domains import Convolution
from lab.measure.products import _bmm, linear, product
from lab.measure.programs import _layer

ROUND = 5
#: Batch, heads, key and value heads, length, width of heads.
SHORT = (
    (2048, 8, 8, 16, 32), (4096, 8, 8, 32, 32), (1024, 8, 8, 48, 32), (2048, 8, 8, 80, 32), (1024, 8, 8, 128, 32),
    (256, 8, 8, 160, 32), (64, 8, 8, 256, 32), (16, 8, 8, 1024, 32), (256, 8, 8, 65, 32), (1024, 4, 4, 33, 64),
    (512, 8, 8, 64, 64), (512, 8, 8, 96, 64), (256, 8, 8, 50, 64), (64, 12, 12, 300, 64), (512, 16, 16, 48, 16),
    (256, 8, 8, 64, 128), (64, 8, 8, 100, 128),
)  # fmt: skip
#: Windows, with and without a bias, in fp16.
WINDOWS = (
    (512, 16, 16, 48, 16), (1024, 8, 8, 48, 32), (512, 8, 8, 64, 64), (2048, 4, 4, 56, 32), (256, 12, 12, 64, 32),
    (128, 16, 16, 144, 32), (64, 24, 24, 56, 32),
)  # fmt: skip
#: Pictures, channels in and out, side, kernel, stride: a filter's gradient for each picture.
SAMPLED = (
    (32, 16, 32, 32, 3, 1), (128, 3, 32, 32, 3, 1), (128, 16, 32, 16, 3, 1), (512, 1, 16, 28, 5, 1),
    (256, 32, 64, 16, 3, 1), (128, 64, 64, 8, 3, 1), (64, 128, 128, 8, 3, 1), (256, 64, 128, 8, 3, 2),
    (512, 32, 32, 8, 3, 1), (128, 128, 256, 4, 3, 1), (768, 16, 32, 14, 3, 2), (128, 64, 128, 8, 1, 1),
    (32, 256, 256, 7, 3, 1), (256, 3, 64, 64, 3, 2),
)  # fmt: skip
#: The same of filters that are wide, of which cuDNN has a kernel for each picture.
WIDER = (
    (256, 64, 128, 16, 3, 2), (512, 64, 128, 12, 3, 2), (256, 128, 256, 8, 3, 2), (512, 96, 192, 8, 3, 1),
    (256, 32, 64, 28, 3, 1), (256, 64, 64, 16, 3, 1), (128, 128, 128, 16, 3, 1), (512, 64, 128, 4, 3, 1),
    (64, 256, 512, 4, 3, 1), (512, 32, 64, 16, 3, 2), (256, 128, 256, 6, 3, 1), (1024, 16, 32, 8, 3, 1),
)  # fmt: skip
#: Layers over volumes.
VOLUMES = (
    *(Convolution(3, batch, c, k, side, kernel, stride) for batch, c, k, side, kernel, stride in (
        (2, 32, 32, 80, 3, 1), (2, 4, 32, 80, 3, 1), (2, 1, 16, 96, 3, 1), (1, 16, 16, 128, 3, 1),
        (2, 64, 32, 80, 3, 1), (2, 32, 64, 80, 3, 2), (2, 64, 64, 56, 3, 1), (2, 64, 128, 40, 3, 2),
        (2, 128, 64, 40, 3, 1), (2, 128, 128, 20, 3, 1), (2, 128, 256, 24, 3, 2), (2, 256, 256, 12, 3, 1),
        (2, 320, 320, 8, 3, 1), (2, 32, 3, 80, 1, 1), (4, 96, 96, 32, 1, 1),
    )),
    *(Convolution(3, 2, c, k, side, 2, 2, 1, True) for c, k, side in (
        (256, 128, 10), (128, 64, 20), (64, 32, 40), (320, 256, 8),
    )),
)  # fmt: skip
#: Layers of one pixel over rows that lie at multiples of 2 to 16 bytes, and of one channel a group.
POINTWISE = (
    *(Convolution(1, 32, c, k, length, 1) for c, k, length in (
        (256, 256, 500), (512, 512, 250), (512, 1024, 260), (768, 768, 150), (512, 512, 301), (384, 384, 1024),
    )),
    *(Convolution(2, 128, c, k, side, 1) for c, k, side in (
        (128, 512, 14), (512, 128, 14), (320, 1280, 7), (960, 160, 7), (96, 384, 28), (64, 256, 30),
    )),
)  # fmt: skip
DEPTHWISE = tuple(
    Convolution(2, 128, c, c, side, kernel, stride, c)
    for c, side, kernel, stride in (
        (48, 112, 3, 2), (64, 112, 5, 2), (96, 56, 5, 2), (128, 56, 3, 2), (192, 28, 5, 2), (240, 28, 5, 1),
        (384, 14, 3, 1), (480, 14, 5, 2), (576, 14, 3, 2), (960, 7, 3, 1), (960, 7, 5, 1), (160, 28, 3, 1),
    )
)  # fmt: skip
#: More of both: rows at multiples of 16 bytes beside those that are not, and pictures of odd sides.
POINTWISE_MORE = (
    *(Convolution(1, 32, c, k, length, 1) for c, k, length in ((512, 512, 512), (384, 96, 1000))),
    *(Convolution(2, batch, c, k, side, 1) for batch, c, k, side in (
        (96, 240, 960, 7), (128, 192, 768, 14), (192, 512, 2048, 7), (128, 384, 1536, 7), (64, 512, 512, 16),
        (64, 256, 256, 32),
    )),
)  # fmt: skip
DEPTHWISE_MORE = tuple(
    Convolution(2, 64, c, c, side, 3, 2, c)
    for c, side in ((192, 97), (128, 57), (384, 29))
)
#: Long side, short side whose rows are no multiples of 16 bytes, wide side.
UNALIGNED = (
    (65536, 100, 256), (49152, 300, 512), (131072, 50, 256), (32768, 588, 1024), (90112, 204, 320),
    (16384, 150, 768), (65536, 99, 256), (262144, 61, 128), (393216, 267, 256), (40960, 301, 512),
)  # fmt: skip
#: Rows, outputs and inputs of layers in 32 bits.
LONG = (
    (16384, 256, 256), (65536, 256, 256), (16384, 640, 640), (65536, 512, 384), (24576, 384, 512),
    (16384, 1024, 1024), (49152, 768, 256), (12288, 12288, 256), (131072, 192, 192), (8192, 8192, 512),
)  # fmt: skip
#: The same of a quarter of a million rows and more, and with sides of a few columns or of no multiple of 16 bytes.
LONGER = (
    (262144, 256, 256), (524288, 256, 256), (262144, 128, 128), (524288, 128, 64), (262144, 512, 384),
    (131072, 768, 256), (200704, 384, 192), (1048576, 64, 64),
)  # fmt: skip
THINNER = (
    (524288, 259, 128), (655360, 60, 256), (720896, 335, 256), (524288, 3, 128), (524288, 1, 256), (65536, 2, 512),
    (65536, 1, 384), (262144, 2, 256),
)  # fmt: skip
#: Batch, rows, columns and depth of products in batches.
BATCHES = (
    (256, 50, 50, 64), (256, 50, 64, 50), (64, 300, 300, 64), (64, 300, 64, 300), (512, 99, 99, 32),
    (512, 99, 32, 99), (48, 588, 588, 64), (48, 588, 64, 588),
)  # fmt: skip
#: Steps, batch, width, layers of recurrent networks.
QUEUED = (
    (50, 64, 1024, 2), (35, 128, 1024, 3), (100, 32, 512, 2), (64, 64, 768, 3), (40, 96, 1280, 2),
    (48, 64, 2048, 1), (96, 128, 256, 3),
)  # fmt: skip
QUEUE = 16_000_000  # cycles (8 ms) in which the host issues what follows
#: Pictures: batch, channels, height, width.
FORMATS = (
    (64, 128, 56, 56), (32, 256, 32, 32), (16, 64, 128, 128), (64, 512, 14, 14), (8, 320, 64, 64),
    (128, 64, 28, 28), (32, 512, 250, 1),
)  # fmt: skip
#: Batch, channels, places of pictures, rows or volumes.
CHANNELS = (
    (2, 32, 512000), (2, 64, 110592), (2, 128, 13824), (8, 64, 16384), (64, 128, 4096), (64, 256, 1024),
    (128, 512, 49), (32, 512, 250), (1, 16, 2097152),
)  # fmt: skip


def cases() -> Iterator[Case]:
    yield from _attention()
    yield from _convolutions()
    yield from _products()
    yield from _recurrent()
    yield from _formats()
    for size in CHANNELS:
        for dtype in ("fp32", "bf16", "fp16"):
            for name, function in OF_CHANNELS.items():
                make = _of_channels(function, size, dtype)
                yield Case("channel", name, size, make, {"dtype": dtype}, round=ROUND)


def _recurrent() -> Iterator[Case]:
    for size in QUEUED:
        for name, module in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
            for dtype in ("fp32", "bf16"):
                for way in ("fwd", "bwd"):
                    make = _queued(module, size, dtype, way == "bwd")
                    setting = {"dtype": dtype}
                    yield Case(
                        "recurrent_queued", name, size, make, setting, way, ROUND
                    )


def _attention() -> Iterator[Case]:
    """Memory-efficient attention in fp32, and the two libraries of halves."""
    whole = ("efficient", {"dtype": "fp32"})
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        whole,
        (whole[0], {**whole[1], "dropout": 0.1}),
        (whole[0], {**whole[1], "mask": True}),
        ("cudnn", {}),
        ("flash", {}),
    )
    for shape in SHORT:
        for backend, options in kinds:
            setting: dict[str, Any] = {"causal": False, **options}
            for case in attention(shape, backend, setting, ROUND):
                yield replace(case, family="attention_short")
    for shape in WINDOWS:
        for masked in (True, False):
            setting = {"causal": False, "dtype": "fp16", "mask": masked}
            for case in attention(shape, "efficient", setting, ROUND):
                yield replace(case, family="attention_window")


def _convolutions() -> Iterator[Case]:
    for family, sizes in (("conv_by_sample", SAMPLED), ("conv_by_sample_wide", WIDER)):
        for size in sizes:
            for dtype in ("tf32", "bf16"):
                make = _sampled(size, dtype)
                setting = {"dtype": dtype}
                yield Case(family, "conv2d", size, make, setting, "bwd", ROUND)
    kinds = (
        ("conv_volume", VOLUMES, ("tf32", "fp16", "bf16")),
        ("conv_pointwise", POINTWISE, ("fp16", "bf16")),
        ("conv_depthwise", DEPTHWISE, ("tf32", "fp16")),
        ("conv_pointwise_more", POINTWISE_MORE, ("tf32", "fp16", "bf16")),
        ("conv_depthwise_more", DEPTHWISE_MORE, ("tf32", "fp16")),
    )
    for family, layers, dtypes in kinds:
        for layer in layers:
            name = f"conv{'_transpose' * layer.transposed}{layer.dims}d"
            for dtype in dtypes:
                build = _layer(layer, dtype, False)
                setting = {"dtype": dtype}
                yield from both(family, name, layer.size, build, setting, ROUND)


def _sampled(size: tuple[int, ...], dtype: str) -> Callable[[Tensors], Call]:
    """The filter's gradient alone, with a group for each picture: what vmap asks for."""
    pictures, c, k, side, kernel, stride = size
    padding, out = kernel // 2, (side + 2 * (kernel // 2) - kernel) // stride + 1

    def make(on: Tensors) -> Call:
        x = on.normal(1, pictures * c, side, side, dtype=dtype)
        gradient = on.normal(1, pictures * k, out, out, dtype=dtype)
        weight = on.normal(pictures * k, c, kernel, kernel, dtype=dtype)
        numbers = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], pictures)
        mask = [False, True, False]
        backward = torch.ops.aten.convolution_backward
        return lambda: backward(gradient, x, weight, None, *numbers, mask)

    return make


def _products() -> Iterator[Case]:
    for rows, short, wide in UNALIGNED:
        for dtype in ("bf16", "tf32"):
            for out, into in ((short, wide), (wide, short)):
                yield from _ways("mm_unaligned", rows, out, into, dtype)
    for rows, out, into in LONG:
        for dtype in ("fp32", "tf32"):
            yield from _ways("mm_long", rows, out, into, dtype)
    for rows, out, into in LONGER:
        for dtype in ("fp32", "tf32", "bf16"):
            yield from _ways("mm_longer", rows, out, into, dtype)
    for rows, short, wide in THINNER:
        for dtype in ("fp32", "tf32"):
            for out, into in ((short, wide), (wide, short)):
                yield from _ways("mm_thinner", rows, out, into, dtype)
    for batch, m, n, k in BATCHES:
        for dtype in ("bf16", "tf32"):
            for layout in ("nn", "nt"):
                case = _bmm(batch, m, n, k, dtype, layout, ROUND)
                yield replace(case, family="bmm_unaligned")


def _ways(family: str, rows: int, out: int, into: int, dtype: str) -> Iterator[Case]:
    """A layer's product with and without a bias, and those of its two gradients."""
    four = (
        product(rows, out, into, dtype, "nt", ROUND),
        linear(rows, out, into, dtype, ROUND),
        product(rows, into, out, dtype, "nn", ROUND),
        product(out, into, rows, dtype, "tn", ROUND),
    )
    for case in four:
        yield replace(case, family=family, graph=False)


def _queued(
    module: Callable[..., Any], size: tuple[int, ...], dtype: str, back: bool
) -> Callable[[Tensors], Call]:
    """Behind a kernel that does nothing for long: as in a step, the host is ahead, and layers run side by side."""
    steps, batch, width, layers = size

    def make(on: Tensors) -> Call:
        x = on.normal(steps, batch, width, dtype=dtype, grad=True)
        network = module(width, width, layers, device=x.device, dtype=x.dtype)
        inputs = [x, *network.parameters()]
        out = network(x)[0] if back else None
        gradient = torch.ones_like(out) if back else None

        def call() -> Any:
            if on.device == "cuda":
                torch.cuda._sleep(QUEUE)
            if not back:
                return network(x)[0]
            return torch.autograd.grad(out, inputs, gradient, retain_graph=True)

        return call

    return make


#: x: channels last; y: channels first; mask: which of y's elements were kept.
OF_FORMATS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "copy_to_last": lambda x, y, mask: x.copy_(y),
    "copy_to_first": lambda x, y, mask: y.copy_(x),
    "add_last": lambda x, y, mask: x + y,
    "add_first": lambda x, y, mask: y + x,
    "silu_backward_last": lambda x, y, mask: torch.ops.aten.silu_backward(x, y),
    "silu_backward_first": lambda x, y, mask: torch.ops.aten.silu_backward(y, x),
    "dropout_backward": lambda x, y, mask: torch.ops.aten.native_dropout_backward(x, mask, 1.1),
}  # fmt: skip


def _formats() -> Iterator[Case]:
    for size in FORMATS:
        for dtype in ("fp32", "bf16"):
            for name, function in OF_FORMATS.items():
                make = _in_formats(function, size, dtype)
                yield Case("formats", name, size, make, {"dtype": dtype}, round=ROUND)


def _in_formats(
    function: Callable[..., Any], size: tuple[int, ...], dtype: str
) -> Callable[[Tensors], Call]:
    n, c, h, w = size

    def make(on: Tensors) -> Call:
        x = on.normal(n, h, w, c, dtype=dtype).permute(0, 3, 1, 2)
        y, mask = on.normal(n, c, h, w, dtype=dtype), on.mask(n, c, h, w)
        return lambda: function(x, y, mask)

    return make


OF_CHANNELS: dict[str, Callable[[Any, Any], Any]] = {
    "bias": lambda x, bias: x.add_(bias),
    "bias_gradient": lambda x, bias: x.sum((0, 2)),
}


def _of_channels(
    function: Callable[..., Any], size: Sequence[int], dtype: str
) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        x = on.normal(*size, dtype=dtype)
        bias = on.normal(1, size[1], 1, dtype=dtype)
        return lambda: function(x, bias)

    return make
