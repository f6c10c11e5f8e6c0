"""Convolutions, norms, pooling, softmax and losses, embeddings: forward and backward through autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Call, Case, Tensors, both

# channels in and out, side of the picture, kernel, stride, groups
RESNET = (
    (3, 64, 224, 7, 2, 1), (64, 64, 56, 1, 1, 1), (64, 64, 56, 3, 1, 1), (64, 256, 56, 1, 1, 1), (256, 64, 56, 1, 1, 1),
    (256, 128, 56, 1, 1, 1), (128, 128, 56, 3, 2, 1), (256, 512, 56, 1, 2, 1), (128, 512, 28, 1, 1, 1),
    (512, 128, 28, 1, 1, 1), (128, 128, 28, 3, 1, 1), (256, 256, 14, 3, 1, 1), (256, 1024, 14, 1, 1, 1),
    (1024, 256, 14, 1, 1, 1), (512, 512, 7, 3, 1, 1), (512, 2048, 7, 1, 1, 1), (2048, 512, 7, 1, 1, 1),
    (1024, 2048, 14, 1, 2, 1),
)  # fmt: skip
OTHERS = (
    (3, 768, 224, 16, 16, 1), (3, 1024, 224, 14, 14, 1), (3, 96, 224, 4, 4, 1), (3, 128, 224, 4, 4, 1),
    (128, 128, 56, 7, 1, 128), (256, 256, 28, 7, 1, 256), (512, 512, 14, 7, 1, 512), (1024, 1024, 7, 7, 1, 1024),
    (128, 256, 56, 2, 2, 1), (32, 32, 112, 3, 1, 32), (96, 96, 112, 3, 2, 96), (144, 144, 56, 5, 2, 144),
    (480, 480, 14, 5, 1, 480), (1152, 1152, 7, 3, 1, 1152), (16, 96, 112, 1, 1, 1), (192, 1152, 7, 1, 1, 1),
    (4, 320, 64, 3, 1, 1), (320, 320, 64, 3, 1, 1), (640, 640, 32, 3, 1, 1), (1280, 1280, 16, 3, 1, 1),
    (1280, 1280, 8, 3, 1, 1), (960, 320, 64, 3, 1, 1), (640, 320, 64, 1, 1, 1), (320, 320, 64, 3, 2, 1),
    (128, 128, 256, 3, 1, 1), (64, 64, 256, 3, 1, 1), (256, 256, 56, 3, 1, 32),
)  # fmt: skip
#: Batch, channels in and out, length, kernel, stride, groups.
SEQUENCES = (
    (16, 80, 768, 3000, 3, 1, 1),
    (16, 768, 768, 3000, 3, 2, 1),
    (2, 4096, 4096, 2048, 4, 1, 4096),
    (8, 512, 512, 8000, 3, 2, 1),
)
ROWS = (
    (512, 768), (4096, 768), (16384, 768), (25216, 768), (8192, 1024), (4096, 2048), (16384, 2048), (2048, 4096),
    (8192, 4096), (32768, 4096), (4096, 8192), (64, 1024), (401408, 96), (262144, 128), (65536, 64), (1000, 1280),
)  # fmt: skip
LOGITS = (
    (4096, 32000),
    (16384, 30522),
    (8192, 50257),
    (8192, 128256),
    (4096, 151936),
    (1024, 151936),
    (2048, 256000),
    (128, 1000),
    (16384, 1000),
    (512, 32128),
)
SCORES = (
    (4, 32, 1024, 1024),
    (4, 32, 2048, 2048),
    (32, 12, 512, 512),
    (128, 12, 197, 197),
    (1, 32, 4096, 4096),
    (64, 3, 49, 49),
    (8192, 1, 1, 64),
    (32768, 1, 1, 128),
    (16, 8, 77, 77),
)


def cases() -> Iterator[Case]:
    yield from _convolutions()
    yield from _row_norms()
    yield from _picture_norms()
    yield from _softmaxes()
    yield from _losses()
    yield from _embeddings()
    yield from _pools()


def _convolutions() -> Iterator[Case]:
    for at, shape in enumerate(RESNET):
        yield from _of_a_resnet(at, shape)
    for at, shape in enumerate(OTHERS):
        yield from _of_others(at, shape)
    for sequence in SEQUENCES:
        yield from _sequence_convolution(*sequence)


def _of_a_resnet(at: int, shape: Sequence[int]) -> Iterator[Case]:
    for batch in (128, 32):
        yield from convolution(batch, shape, "bf16", True, 0 if batch == 128 else 1)
    yield from convolution(64, shape, "tf32", False, 1)
    yield from convolution(64, shape, "fp32", False, 1)
    if at % 3 == 0:
        yield from convolution(128, shape, "fp16", True, 2)
        yield from convolution(128, shape, "bf16", False, 2)
        yield from convolution(32, shape, "fp32", False, 2)


def _of_others(at: int, shape: Sequence[int]) -> Iterator[Case]:
    batch = 64 if shape[2] > 64 or shape[5] > 1 else 16
    yield from convolution(batch, shape, "bf16", True, 1)
    dtype = "bf16" if at % 2 else "tf32"
    yield from convolution(batch, shape, dtype, False, 1 if at < 4 else 2)
    if at % 2:
        yield from convolution(batch, shape, "fp32", False, 2)


def convolution(
    batch: int, shape: Sequence[int], dtype: str, last: bool, round: int
) -> list[Case]:
    into, out, side, kernel, stride, groups = shape

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        order = torch.channels_last if last else torch.contiguous_format
        x = (
            on.normal(batch, into, side, side, dtype=dtype)
            .to(memory_format=order)
            .requires_grad_(into > 4)
        )
        w = (
            on.normal(out, into // groups, kernel, kernel, dtype=dtype)
            .to(memory_format=order)
            .requires_grad_()
        )
        pad = 0 if kernel == stride else kernel // 2
        wanted = (x, w) if into > 4 else (w,)  # a picture needs no gradient
        return (lambda: F.conv2d(x, w, None, stride, pad, 1, groups)), wanted

    setting = {"dtype": dtype, "channels_last": last}
    return both("conv", "conv2d", (batch, *shape), build, setting, round)


def _sequence_convolution(
    batch: int, into: int, out: int, length: int, kernel: int, stride: int, groups: int
) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x, w, b = (
            on.normal(batch, into, length, grad=True),
            on.normal(out, into // groups, kernel, grad=True),
            on.normal(out, grad=True),
        )
        return (lambda: F.conv1d(x, w, b, stride, kernel // 2, 1, groups)), (x, w, b)

    return both(
        "conv",
        "conv1d",
        (batch, into, out, length, kernel, stride, groups),
        build,
        {"dtype": "bf16"},
        2,
    )


def _row_norms() -> Iterator[Case]:
    for rows, width in ROWS:
        for dtype, weights in (("bf16", "bf16"), ("fp32", "fp32")):
            for name in ("layer_norm", "rms_norm"):
                yield from _row_norm(
                    name,
                    rows,
                    width,
                    dtype,
                    weights,
                    0 if width in (768, 2048, 4096) else 1,
                )


def _row_norm(
    name: str, rows: int, width: int, dtype: str, weights: str, round: int
) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x, w = (
            on.normal(rows, width, dtype=dtype, grad=True),
            on.normal(width, dtype=weights, grad=True),
        )
        if name == "rms_norm":
            return (lambda: F.rms_norm(x, (width,), w)), (x, w)
        b = on.normal(width, dtype=weights, grad=True)
        return (lambda: F.layer_norm(x, (width,), w, b)), (x, w, b)

    return both("norm", name, (rows, width), build, {"dtype": dtype}, round)


#: Channels and sides of networks made for phones.
MOBILE = (
    (16, 112),
    (32, 112),
    (96, 112),
    (24, 56),
    (144, 56),
    (40, 28),
    (240, 28),
    (112, 14),
    (480, 14),
    (672, 14),
    (192, 7),
    (1152, 7),
)


def _picture_norms() -> Iterator[Case]:
    pictures = (
        (64, 112),
        (64, 56),
        (256, 56),
        (128, 28),
        (512, 28),
        (256, 14),
        (1024, 14),
        (512, 7),
        (2048, 7),
    )
    for channels, side in pictures:
        for batch, dtype, last, round in (
            (128, "bf16", True, 0),
            (32, "bf16", True, 1),
            (64, "fp32", False, 1),
            (128, "bf16", False, 2),
        ):
            yield from batch_norm(batch, channels, side, dtype, last, round)
    for channels, side in MOBILE:
        for last in (True, False):
            yield from batch_norm(64, channels, side, "bf16", last, 2)
        yield from batch_norm(32, channels, side, "fp32", False, 2)
    for channels, side in ((320, 64), (640, 32), (1280, 16), (128, 256), (2560, 8)):
        for dtype, last in (("bf16", False), ("bf16", True), ("fp32", False)):
            yield from _group_norm(16, channels, side, dtype, last)


def _picture(
    on: Tensors, batch: int, channels: int, side: int, dtype: str, last: bool
) -> Any:
    order = torch.channels_last if last else torch.contiguous_format
    return (
        on.normal(batch, channels, side, side, dtype=dtype)
        .to(memory_format=order)
        .requires_grad_()
    )


def batch_norm(
    batch: int, channels: int, side: int, dtype: str, last: bool, round: int
) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = _picture(on, batch, channels, side, dtype, last)
        w, b = (
            on.normal(channels, dtype="fp32", grad=True),
            on.normal(channels, dtype="fp32", grad=True),
        )
        mean, var = (
            on.normal(channels, dtype="fp32"),
            on.positive(channels, dtype="fp32"),
        )
        return (lambda: F.batch_norm(x, mean, var, w, b, True)), (x, w, b)

    return both(
        "batch_norm",
        "batch_norm",
        (batch, channels, side),
        build,
        {"dtype": dtype, "channels_last": last},
        round,
    )


def _group_norm(
    batch: int, channels: int, side: int, dtype: str, last: bool
) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = _picture(on, batch, channels, side, dtype, last)
        w, b = (
            on.normal(channels, dtype=dtype, grad=True),
            on.normal(channels, dtype=dtype, grad=True),
        )
        return (lambda: F.group_norm(x, 32, w, b)), (x, w, b)

    return both(
        "group_norm",
        "group_norm",
        (batch, channels, side),
        build,
        {"dtype": dtype, "channels_last": last},
        1,
    )


def _softmaxes() -> Iterator[Case]:
    for scores in SCORES:
        for dtype, out in (("bf16", None), ("fp32", None), ("bf16", "fp32")):
            yield from _softmax("softmax", scores, dtype, out, 0 if out is None else 1)
    for shape in LOGITS:
        for dtype in ("bf16", "fp32"):
            yield from _softmax("log_softmax", shape, dtype, None, 0)
    yield from _softmax("softmax", (4096, 64, 256), "fp32", None, 2, dim=1)


def _softmax(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    out: str | None,
    round: int,
    dim: int = -1,
) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = on.normal(*shape, dtype=dtype, grad=True)
        as_type = torch.float32 if out else None
        return (lambda: getattr(F, name)(x, dim=dim, dtype=as_type)), (x,)

    return both(
        "softmax",
        name,
        shape,
        build,
        {"dtype": dtype, "out": out or dtype, "dim": dim},
        round,
    )


def _losses() -> Iterator[Case]:
    for rows, classes in LOGITS:
        for dtype in ("bf16", "fp32"):
            for name in ("cross_entropy", "nll_loss"):
                yield from loss(
                    name, rows, classes, dtype, {}, 0 if dtype == "fp32" else 1
                )
    yield from loss("cross_entropy", 4096, 32000, "fp32", {"label_smoothing": 0.1}, 1)
    yield from loss("cross_entropy", 4096, 32000, "fp32", {"reduction": "sum"}, 1)
    for elements in (2**16, 2**24):
        for name in (
            "mse_loss",
            "smooth_l1_loss",
            "binary_cross_entropy_with_logits",
            "kl_div",
        ):
            yield from _distance(name, elements)


def loss(
    name: str, rows: int, classes: int, dtype: str, options: dict[str, Any], round: int
) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x, y = on.normal(rows, classes, dtype=dtype, grad=True), on.below(classes, rows)
        return (lambda: getattr(F, name)(x, y, **options)), (x,)

    return both(
        "loss", name, (rows, classes), build, {"dtype": dtype, **options}, round
    )


def _distance(name: str, elements: int) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x, y = (
            on.normal(elements, dtype="fp32", grad=True),
            on.positive(elements, dtype="fp32"),
        )
        options = {"reduction": "batchmean"} if name == "kl_div" else {}
        return (lambda: getattr(F, name)(x, y, **options)), (x,)

    return both("loss", name, (elements,), build, {"dtype": "fp32"}, 2)


def _embeddings() -> Iterator[Case]:
    for tokens in (512, 4096, 16384, 65536):
        for vocab, width in (
            (32000, 4096),
            (128256, 2048),
            (151936, 1024),
            (30522, 768),
            (512, 768),
            (2, 768),
        ):
            for skewed in (True, False):
                yield from _embedding(
                    tokens,
                    vocab,
                    width,
                    "bf16",
                    skewed,
                    0 if skewed and tokens > 512 else 1,
                )
            if tokens in (4096, 16384):
                yield from _embedding(tokens, vocab, width, "fp32", True, 1)


def _embedding(
    tokens: int, vocab: int, width: int, dtype: str, skewed: bool, round: int
) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        table = on.normal(vocab, width, dtype=dtype, grad=True)
        ids = (on.skewed if skewed else on.below)(vocab, 8, tokens // 8)
        return (lambda: F.embedding(ids, table)), (table,)

    return both(
        "embedding",
        "embedding",
        (tokens, vocab, width),
        build,
        {"dtype": dtype, "skewed": skewed},
        round,
    )


Pool = Callable[[Any], Any]
POOLS: dict[str, Pool] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
    "interpolate_nearest": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "interpolate_bilinear": lambda x: F.interpolate(
        x, scale_factor=2.0, mode="bilinear"
    ),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
}


def _pools() -> Iterator[Case]:
    for name, function in POOLS.items():
        for batch, channels, side in (
            (128, 64, 112),
            (32, 64, 56),
            (128, 2048, 7),
            (16, 320, 32),
        ):
            for dtype, last in (("bf16", True), ("fp32", False)):
                if name != "unfold" or batch < 64:
                    yield from pool(
                        name, function, (batch, channels, side), dtype, last
                    )


def pool(
    name: str, function: Pool, size: tuple[int, int, int], dtype: str, last: bool
) -> list[Case]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = _picture(on, *size, dtype, last)
        return (lambda: function(x)), (x,)

    round = 0 if name == "max_pool2d" else 1
    return both(
        "pool", name, size, build, {"dtype": dtype, "channels_last": last}, round
    )
