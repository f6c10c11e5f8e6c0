"""Operations of programs as people write them: instance norms, many indices of few rows, cuDNN's trials.

Critics, radiance fields, per-sample gradients and segmentation issue them. Sizes are grids of powers of two and their
like, not those of any program. Every kind is a family of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Call, Case, Tensors, both
from lab.measure.domains import CONVOLUTIONS, Convolution, _network

ROUND = 5
#: Batch, channels, side, dimensions of space.
INSTANCES = (
    (64, 128, 32, 2), (32, 256, 16, 2), (128, 256, 8, 2), (64, 512, 4, 2), (16, 64, 128, 2),
    (2, 32, 64, 3), (4, 128, 16, 3),
)  # fmt: skip
BATCHES = (
    (64, 64, 112, 2),
    (128, 32, 56, 2),
    (64, 256, 28, 2),
    (128, 512, 7, 2),
    (32, 1024, 14, 2),
    (2, 32, 64, 3),
)
#: Rows of a table, width, indices.
TARGETS = (
    (2, 768, 8192), (8, 2048, 8192), (16, 1024, 16384), (32, 4096, 4096), (64, 512, 16384), (128, 64, 65536),
    (1024, 256, 65536), (8, 1, 16384),
)  # fmt: skip
#: The same of tables of hashed places in space.
HASHED = ((2**14, 2, 2**21), (2**19, 2, 2**22), (2**19, 4, 2**20), (2**17, 8, 2**20))
#: Layers that convolve pictures of few channels, or of one pixel, or enlarge them to colours.
EDGES = (
    *(Convolution(2, 64, 3, out, side, kernel, 2) for out, side, kernel in ((64, 64, 4), (32, 224, 3), (64, 224, 7))),
    *(Convolution(2, 64, c, 2 * c, side, 4, 2) for c, side in ((64, 32), (128, 16), (256, 8))),
    *(Convolution(2, 64, c, 3, side, 4, 2, 1, True) for c, side in ((64, 32), (32, 64))),
    *(Convolution(2, 64, c, c // 2, 4, 4, 2, 1, True) for c in (512, 1024)),
    *(Convolution(2, 8, c, out, side, 1)
      for c, out, side in ((64, 64, 256), (128, 32, 128), (32, 128, 256), (256, 256, 64))),
    *(Convolution(2, 64, c, 4 * c, side, 1) for c, side in ((64, 56), (160, 14), (256, 7))),
    *(Convolution(2, 128, c, c, side, 5, 1, c) for c, side in ((192, 28), (640, 14), (1024, 7))),
)  # fmt: skip
#: A filter for every picture: groups of a batch, as vmap makes them.
SAMPLES = tuple(
    Convolution(2, 1, 64 * c, 64 * k, side, 3, 1, 64)
    for c, k, side in ((16, 32, 28), (32, 64, 14), (64, 64, 8))
)
#: Sequence, batch, width, layers.
RECURRENT = (
    (64, 64, 1536, 1),
    (64, 64, 1536, 2),
    (128, 32, 1024, 3),
    (32, 256, 2048, 1),
    (200, 16, 512, 4),
)


def cases() -> Iterator[Case]:
    for size in INSTANCES:
        for dtype in ("fp32", "fp16", "bf16"):
            yield from both(
                "instance_norm",
                "instance_norm",
                size,
                _norm(size, dtype, None),
                {"dtype": dtype},
                ROUND,
            )
    for size in BATCHES:
        for dtype in ("fp32", "fp16", "bf16"):
            for training in (True, False):
                setting = {"dtype": dtype, "training": training}
                yield from both(
                    "half_norm",
                    "batch_norm",
                    size,
                    _norm(size, dtype, training),
                    setting,
                    ROUND,
                )
    yield from _indexed()
    yield from _convolutions()
    for size in RECURRENT:
        for name, module in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
            for dtype in ("fp32", "bf16"):
                build = _network(module, size, dtype)
                yield from both(
                    "recurrent_wide", name, size, build, {"dtype": dtype}, ROUND
                )


Built = Callable[[Tensors], tuple[Call, Sequence[Any]]]


def _norm(size: tuple[int, ...], dtype: str, training: bool | None) -> Built:
    """A batch norm, or an instance norm where nothing says whether it trains."""
    batch, channels, side, dims = size

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = on.normal(batch, channels, *(side,) * dims, dtype=dtype, grad=True)
        weight, bias = (on.normal(channels, dtype="fp32", grad=True) for _ in range(2))
        mean, var = (
            on.normal(channels, dtype="fp32"),
            on.positive(channels, dtype="fp32"),
        )
        if training is None:
            weight, bias = (
                w.detach().to(x.dtype).requires_grad_() for w in (weight, bias)
            )
            return lambda: F.instance_norm(x, None, None, weight, bias), [
                x,
                weight,
                bias,
            ]
        return lambda: F.batch_norm(x, mean, var, weight, bias, training), [
            x,
            weight,
            bias,
        ]

    return build


BY_INDEX: dict[str, Callable[[Any, Any, Any], Any]] = {
    "index_put_accumulate": lambda x, y, ids: torch.zeros_like(x).index_put_((ids,), y, accumulate=True),
    "index_add": lambda x, y, ids: torch.zeros_like(x).index_add_(0, ids, y),
    "scatter_add": lambda x, y, ids: torch.zeros_like(x).scatter_add_(0, ids[:, None].expand_as(y), y),
    "index_rows": lambda x, y, ids: x[ids],
    "embedding_gradient": lambda x, y, ids: torch.ops.aten.embedding_dense_backward(y, ids, x.shape[0], -1, False),
}  # fmt: skip


def _indexed() -> Iterator[Case]:
    for family, sizes in (("few_targets", TARGETS), ("hashed", HASHED)):
        for size in sizes:
            for name, function in BY_INDEX.items():
                for dtype in ("fp32", "bf16"):
                    make = _by_index(function, size, dtype)
                    yield Case(family, name, size, make, {"dtype": dtype}, round=ROUND)


def _by_index(
    function: Callable[..., Any], size: tuple[int, ...], dtype: str
) -> Callable[[Tensors], Call]:
    rows, width, count = size

    def make(on: Tensors) -> Call:
        x, y, ids = (
            on.normal(rows, width, dtype=dtype),
            on.normal(count, width, dtype=dtype),
            on.below(rows, count),
        )
        return lambda: function(x, y, ids)

    return make


def _convolutions() -> Iterator[Case]:
    kinds = (
        ("conv_edge", EDGES, (False, True)),
        ("conv_sample", SAMPLES, (False,)),
        ("conv_tried", CONVOLUTIONS[::2], (True,)),
    )
    for family, layers, ways in kinds:
        for layer in layers:
            name = f"conv{'_transpose' * layer.transposed}{layer.dims}d"
            for dtype in ("tf32", "fp16", "bf16"):
                for tried in ways:
                    setting = {"dtype": dtype, "tried": tried}
                    yield from both(
                        family,
                        name,
                        layer.size,
                        _layer(layer, dtype, tried),
                        setting,
                        ROUND,
                    )


def _layer(layer: Convolution, dtype: str, tried: bool) -> Built:
    """`tried`: cuDNN tries its kernels and takes the fastest (`torch.backends.cudnn.benchmark`)."""

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x, weight = layer.operands(on, dtype)
        torch.backends.cudnn.benchmark = tried  # also of backward, which follows
        return lambda: layer.call(x, weight), [x, weight]

    return build
