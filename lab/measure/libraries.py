"""Operations as libraries of picture models have them (diffusers, timm, segmentation): sizes that no other family has.

Every kind is a family of its own, so that what the other families hold out stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.attention import only
from lab.measure.case import Call, Case, Tensors, both
from lab.measure.layers import convolution

ROUND = 3

#: Batch; channels in and out, side, kernel, stride, groups: groups of 16 to 128 channels.
GROUPED = (
    (64, (768, 768, 14, 3, 1, 6)), (64, (768, 768, 7, 3, 1, 6)), (64, (256, 256, 28, 3, 1, 2)),
    (64, (256, 256, 56, 3, 2, 2)), (64, (512, 512, 28, 3, 1, 4)), (64, (1536, 1536, 7, 3, 1, 12)),
    (128, (384, 384, 14, 3, 1, 6)), (64, (512, 512, 14, 3, 1, 16)), (64, (1024, 1024, 14, 3, 1, 16)),
    (64, (1024, 1024, 14, 3, 2, 32)), (32, (1056, 1056, 14, 3, 1, 44)), (64, (448, 448, 28, 3, 1, 8)),
    (64, (1024, 1024, 7, 3, 1, 64)), (32, (256, 256, 56, 3, 1, 16)), (64, (384, 384, 28, 3, 1, 3)),
)  # fmt: skip

#: The same for networks that remove noise from pictures, and for those that encode them.
DIFFUSION = (
    (8, (320, 320, 64, 3, 1, 1)), (8, (640, 640, 32, 3, 1, 1)), (8, (1280, 1280, 16, 3, 1, 1)),
    (8, (1280, 1280, 8, 3, 1, 1)), (8, (2560, 1280, 16, 3, 1, 1)), (8, (960, 320, 64, 3, 1, 1)),
    (2, (320, 320, 128, 3, 1, 1)), (2, (1280, 1280, 32, 3, 1, 1)), (4, (128, 128, 256, 3, 1, 1)),
    (4, (256, 256, 128, 3, 1, 1)), (4, (512, 512, 64, 3, 1, 1)), (8, (320, 320, 64, 3, 2, 1)),
    (8, (640, 320, 64, 1, 1, 1)), (8, (320, 4, 64, 3, 1, 1)), (16, (128, 128, 128, 3, 1, 1)),
    (4, (3, 128, 256, 3, 1, 1)),
)  # fmt: skip

#: Batch, channels in and out, length, kernel, stride, groups: sound, and wide filters in groups (wav2vec 2.0).
SEQUENCES = (
    (8, 768, 768, 499, 128, 1, 16), (8, 1024, 1024, 499, 128, 1, 16), (4, 768, 768, 749, 128, 1, 16),
    (16, 512, 512, 249, 128, 1, 16), (8, 768, 768, 499, 32, 1, 16), (8, 768, 768, 499, 9, 1, 4),
    (8, 512, 512, 31999, 3, 2, 1), (8, 512, 512, 7999, 3, 2, 1), (8, 512, 512, 999, 2, 2, 1),
    (8, 1, 512, 160000, 10, 5, 1), (16, 80, 512, 3000, 3, 1, 1), (8, 768, 768, 1500, 3, 2, 1),
    (32, 256, 256, 512, 5, 1, 1), (8, 768, 1536, 499, 1, 1, 1), (8, 512, 512, 499, 31, 1, 512),
)  # fmt: skip

#: Batch, heads, queries, keys, head dimension. Heads of 72 and 88; keys of a text beside a picture's queries.
HEADS = (
    (32, 16, 256, 256, 72), (8, 16, 1024, 1024, 72), (2, 16, 4096, 4096, 72), (16, 16, 576, 576, 72),
    (4, 24, 1024, 1024, 88), (8, 8, 256, 256, 160), (16, 32, 1024, 1024, 32), (64, 12, 196, 196, 32),
    (8, 8, 4096, 77, 40), (8, 8, 1024, 77, 80), (8, 8, 256, 77, 160), (8, 16, 1024, 120, 72),
    (2, 10, 4096, 77, 64), (2, 20, 1024, 77, 64), (1, 12, 8100, 226, 128), (16, 12, 512, 1500, 64),
)  # fmt: skip

#: Windows with a mask of every head's, as they add places: batch of windows, heads, length, head dimension.
WINDOWS = (
    (2048, 2, 49, 32), (512, 4, 49, 32), (128, 8, 49, 32), (2048, 4, 49, 32), (512, 8, 49, 32),
    (64, 12, 196, 32), (256, 6, 144, 32), (64, 16, 64, 32), (1024, 3, 64, 32), (16, 12, 256, 64),
)  # fmt: skip

#: Rows and width of layer norms without weights, or with weights that are not trained.
UNTRAINED = (
    (8192, 1152), (32768, 320), (8192, 640), (2048, 1280), (16384, 3072), (4096, 1536), (4096, 4096), (32768, 768),
)  # fmt: skip

#: The same of layer norms with narrow rows, as the first stages of picture models have them.
NARROW = (
    (100352, 64), (25088, 128), (131072, 64), (32768, 128), (8192, 320), (401408, 96), (100352, 192), (12544, 384),
    (401408, 128), (2048, 512),
)  # fmt: skip

#: Batch, channels, side of pictures under a group norm with 32 groups.
GROUP_NORMS = (
    (8, 320, 64), (8, 640, 32), (8, 1280, 16), (8, 1280, 8), (2, 320, 128), (2, 1280, 32), (4, 128, 256), (4, 512, 64),
    (8, 960, 64), (8, 2560, 16), (16, 128, 128), (16, 512, 16),
)  # fmt: skip

#: Batch, channels, side, times the side: pictures made larger.
LARGER = (
    (8, 768, 16, 8), (8, 768, 64, 2), (8, 256, 32, 4), (8, 19, 128, 4), (4, 150, 128, 4), (8, 1280, 8, 2),
    (8, 640, 32, 2), (2, 512, 64, 2),
)  # fmt: skip

#: Rows and width of a table of places, and how many picks of them there are.
PLACES = (
    (729, 12, 38416), (169, 3, 2401), (169, 24, 2401), (169, 8, 2401), (729, 24, 38416), (3972, 16, 65536),
    (512, 768, 8192),
)  # fmt: skip

#: Rows, width and picks of each row, along the last dimension.
ALONG = (
    (192 * 512, 512, 512),
    (48 * 512, 512, 512),
    (192 * 128, 512, 128),
    (8192, 32000, 1),
    (16384, 1024, 256),
)


def cases() -> Iterator[Case]:
    yield from _convolutions()
    yield from _sequences()
    for heads in HEADS:
        yield from _attention(heads, "cudnn", False)
    for heads in HEADS[:8:2]:
        yield from _attention(heads, "flash", False)
    for batch, many, length, head in WINDOWS:
        yield from _attention((batch, many, length, length, head), "efficient", True)
    yield from _norms()
    for larger in LARGER:
        for mode in ("bilinear", "nearest"):
            yield from _larger(larger, mode)
    yield from map(_places, PLACES)
    for along in ALONG:
        for near in (False, True):
            yield _along(along, near)
    for dtype in ("bf16", "fp32"):
        yield from _classes((8, 19, 512), dtype)
        yield from _classes((4, 150, 256), dtype)


def _norms() -> Iterator[Case]:
    for trained, sizes in ((False, UNTRAINED), (True, NARROW)):
        for size in sizes:
            for dtype in ("bf16", "fp32"):
                yield from _layer_norm(size, dtype, trained)
    for picture in GROUP_NORMS:
        for dtype, last in (("bf16", False), ("bf16", True), ("fp32", False)):
            yield from _group_norm(picture, dtype, last)


def _sequences() -> Iterator[Case]:
    for size in SEQUENCES:
        yield from _sequence(size)


def _sequence(size: tuple[int, int, int, int, int, int, int]) -> list[Case]:
    batch, into, out, length, kernel, stride, groups = size
    pad = kernel // 2

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = on.normal(batch, into, length, grad=into > 4)
        w = on.normal(out, into // groups, kernel, grad=True)
        wanted = (x, w) if into > 4 else (w,)  # sound needs no gradient
        return (lambda: F.conv1d(x, w, None, stride, pad, 1, groups)), wanted

    return both("sequence_conv", "conv1d", size, build, {"dtype": "bf16"}, ROUND)


def _convolutions() -> Iterator[Case]:
    for name, sizes in (("grouped_conv", GROUPED), ("diffusion_conv", DIFFUSION)):
        for at, (batch, shape) in enumerate(sizes):
            for dtype, last, every in (
                ("bf16", True, 1),
                ("bf16", False, 1),
                ("tf32", False, 2),
            ):
                if at % every == 0:
                    for case in convolution(batch, shape, dtype, last, ROUND):
                        yield replace(case, family=name)


def _attention(size: Sequence[int], backend: str, masked: bool) -> list[Case]:
    batch, heads, queries, keys, head = size

    def lying(on: Tensors, length: int) -> Any:
        """As a linear layer leaves it: length before heads."""
        made = on.normal(batch, length, heads, head)
        return made.transpose(1, 2).requires_grad_()

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        only(backend)
        q, k, v = lying(on, queries), lying(on, keys), lying(on, keys)
        mask = on.normal(batch, heads, queries, keys) if masked else None
        return (lambda: F.scaled_dot_product_attention(q, k, v, mask)), (q, k, v)

    setting = {"backend": backend, "dtype": "bf16", "mask": masked}
    name = "windows" if masked else "heads"
    return both(name, "sdpa", tuple(size), build, setting, ROUND)


def _layer_norm(size: tuple[int, int], dtype: str, trained: bool) -> list[Case]:
    rows, width = size

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = on.normal(rows, width, dtype=dtype, grad=True)
        if not trained:
            return (lambda: F.layer_norm(x, (width,))), (x,)
        w, b = (on.normal(width, dtype=dtype, grad=True) for _ in range(2))
        return (lambda: F.layer_norm(x, (width,), w, b)), (x, w, b)

    name = "narrow_norm" if trained else "untrained_norm"
    return both(name, "layer_norm", size, build, {"dtype": dtype}, ROUND)


def _picture(on: Tensors, size: Sequence[int], dtype: str, last: bool) -> Any:
    batch, channels, side = size
    order = torch.channels_last if last else torch.contiguous_format
    made = on.normal(batch, channels, side, side, dtype=dtype)
    return made.to(memory_format=order).requires_grad_()


def _group_norm(size: tuple[int, int, int], dtype: str, last: bool) -> list[Case]:
    channels = size[1]

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = _picture(on, size, dtype, last)
        w, b = (on.normal(channels, dtype=dtype, grad=True) for _ in range(2))
        return (lambda: F.group_norm(x, 32, w, b)), (x, w, b)

    setting = {"dtype": dtype, "channels_last": last}
    return both("noise_norm", "group_norm", size, build, setting, ROUND)


def _larger(size: tuple[int, int, int, int], mode: str) -> list[Case]:
    *picture, times = size
    corners: dict[str, Any] = {"align_corners": False} if mode == "bilinear" else {}

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        x = _picture(on, picture, "bf16", False)
        return (lambda: F.interpolate(x, scale_factor=times, mode=mode, **corners)), (
            x,
        )

    return both("larger", f"interpolate_{mode}", size, build, {"dtype": "bf16"}, ROUND)


def _places(size: tuple[int, int, int]) -> Case:
    """Gradients of a table of relative places: each place gets those of many picks."""
    rows, width, picks = size

    def make(on: Tensors) -> Call:
        table = on.normal(rows, width, dtype="fp32")
        values = on.normal(picks, width, dtype="fp32")
        at = on.below(rows, picks)
        return lambda: table.index_put((at,), values, accumulate=True)

    setting = {"dtype": "fp32"}
    return Case("places", "index_put_accumulate", size, make, setting, "fwd", ROUND)


def _along(size: tuple[int, int, int], near: bool) -> Case:
    """Gradients of `gather` along rows: places at random, or next to each other as relative places lie."""
    rows, width, picks = size

    def make(on: Tensors) -> Call:
        out = on.normal(rows, width)
        values = on.normal(rows, picks)
        if near:
            row = torch.arange(rows, device=on.device)[:, None]
            column = torch.arange(picks, device=on.device)[None]
            at = (column - row % width + width // 2).clamp(0, width - 1)
        else:
            at = on.below(width, rows, picks)
        return lambda: out.scatter_add(1, at, values)

    setting = {"dtype": "bf16", "near": near}
    return Case("along", "scatter_add", size, make, setting, "fwd", ROUND)


def _classes(size: tuple[int, int, int], dtype: str) -> list[Case]:
    """The loss of a segmentation: a class of every pixel."""
    batch, classes, side = size

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        logits = on.normal(batch, classes, side, side, dtype=dtype, grad=True)
        labels = on.below(classes, batch, side, side)
        return (lambda: F.cross_entropy(logits, labels)), (logits,)

    return both("pixels", "cross_entropy", size, build, {"dtype": dtype}, ROUND)
