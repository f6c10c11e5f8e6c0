"""Layers of networks for pictures at other batches and in other types, and products of their sizes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lab.measure import layers
from lab.measure.attention import attention
from lab.measure.case import Call, Case, Tensors
from lab.measure.products import linear, ways
from lab.measure.vision import shapes

#: Batch, type, channels last, and every how many layers beginning where.
CONVOLUTIONS = (
    (128, "bf16", True, 6, 0),
    (256, "bf16", True, 12, 1),
    (16, "bf16", False, 9, 2),
    (64, "fp16", True, 9, 3),
    (128, "tf32", False, 7, 4),
    (32, "fp32", False, 8, 5),
    (32, "tf32", False, 11, 6),
)
#: Those of ResNet-50, at batches between.
OF_RESNET = (
    (64, "bf16", True),
    (128, "tf32", False),
    (32, "tf32", False),
    (256, "bf16", True),
)
PICTURES = ((64, 112), (64, 56), (256, 56), (512, 28), (1024, 14), (2048, 7), (256, 14))
POOLED = (
    (128, 64, 112),
    (64, 64, 112),
    (32, 64, 112),
    (256, 64, 112),
    (16, 64, 112),
    (64, 192, 56),
)
POOLS = ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate_bilinear")
#: Rows, outputs and inputs of networks of a few neurons.
NARROW = (
    (8, 8),
    (64, 64),
    (256, 256),
    (512, 512),
    (2048, 512),
    (512, 2048),
    (1000, 1024),
    (10, 512),
)
#: Linear layers on every place of a picture.
PLACES = (
    (401408, 384, 96), (100352, 768, 192), (401408, 96, 384), (100352, 192, 768), (25088, 1536, 384), (200704, 384, 96),
)  # fmt: skip
#: Vocabularies of odd sizes in fp32.
ODD = ((4096, 30522, 768), (2048, 30522, 768), (8192, 50257, 768), (512, 30522, 1024))
#: Tokens, outputs and inputs of weights whose gradients are added up in fp32.
ADDED = (
    (4096, 4096, 4096), (8192, 4096, 14336), (8192, 14336, 4096), (2048, 8192, 2048), (16384, 2048, 8192),
    (8192, 6144, 4096), (4096, 3072, 2048), (2048, 4096, 14336), (16384, 1024, 4096), (8192, 8192, 8192),
)  # fmt: skip
DROPPED = (
    (2, 8, 8, 128, 64),
    (16, 12, 12, 256, 64),
    (8, 16, 16, 512, 64),
    (4, 12, 12, 1024, 64),
)
SHORT = (
    (128, 8, 8, 77, 64),
    (128, 12, 12, 50, 64),
    (256, 8, 8, 77, 64),
    (64, 12, 12, 50, 64),
    (32, 12, 12, 64, 64),
)


def cases() -> Iterator[Case]:
    yield from _pictures()
    yield from _norms_and_pools()
    yield from _products()
    for shape in DROPPED:
        for dtype in ("fp32", "bf16"):
            setting = {"causal": False, "dropout": 0.1, "dtype": dtype}
            yield from attention(shape, "efficient", setting, 3)
        setting = {"causal": True, "dropout": 0.1}
        yield from attention(shape, "cudnn", setting, 3)
    for shape in SHORT:
        for causal in (True, False):
            yield from attention(shape, "cudnn", {"causal": causal}, 3)


def _pictures() -> Iterator[Case]:
    every = list(shapes())
    for batch, dtype, last, step, start in CONVOLUTIONS:
        for shape in every[start::step]:
            yield from layers.convolution(batch, shape, dtype, last, 3)
    for batch, dtype, last in OF_RESNET:
        for shape in layers.RESNET:
            yield from layers.convolution(batch, shape, dtype, last, 3)


def _norms_and_pools() -> Iterator[Case]:
    for channels, side in PICTURES:
        for batch, dtype, last in (
            (64, "bf16", True),
            (64, "fp16", True),
            (16, "fp32", False),
            (128, "fp32", False),
        ):
            yield from layers.batch_norm(batch, channels, side, dtype, last, 3)
    for name in POOLS:
        for size in POOLED:
            for dtype, last in (("bf16", True), ("fp32", False), ("fp16", True)):
                yield from layers.pool(name, layers.POOLS[name], size, dtype, last)
    for rows, classes in ((8, 10), (16, 1000), (32, 1000), (128, 128), (64, 1000)):
        for name in ("cross_entropy", "nll_loss"):
            yield from layers.loss(name, rows, classes, "fp32", {}, 3)


def _products() -> Iterator[Case]:
    for rows in (8, 32, 64, 256):
        for out, into in NARROW:
            yield linear(rows, out, into, "fp32", 3)
            yield linear(rows, out, into, "bf16", 3)
            yield from ways(rows, out, into, "fp32", 3)
    for rows, out, into in PLACES:
        yield linear(rows, out, into, "bf16", 3)
        yield from ways(rows, out, into, "bf16", 3)
    for rows, out, into in ODD:
        yield linear(rows, out, into, "fp32", 3)
        yield from ways(rows, out, into, "fp32", 3)
    for tokens, out, into in ADDED:
        yield from ways(tokens, out, into, "bf16", 3)
        yield _added(tokens, out, into)


def _added(tokens: int, out: int, into: int) -> Case:
    """The gradient of a weight, added to what is there in fp32."""

    def make(on: Tensors) -> Call:
        torch.backends.cuda.matmul.allow_tf32 = False
        a, b = on.normal(tokens, out).t(), on.normal(tokens, into)
        total = on.normal(out, into, dtype="fp32")
        return lambda: torch.addmm(total, a, b, out_dtype=torch.float32)

    setting = {"dtype": "bf16", "layout": "tn", "out": "fp32"}
    return Case("addmm", "added", (out, into, tokens), make, setting, round=3)
