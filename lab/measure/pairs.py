"""Operations of kinds that twelve programs of two GPUs showed to be off (`lab/cases/pairs`).

Batch norms whose statistics are exchanged (`torch.nn.SyncBatchNorm`): their four parts in both memory formats, and rows
chosen by a mask; dilated filters of long rows. Attention over few tokens with masks and dropout, and patches of
pictures whose gradients come in the order of tokens. Sizes are grids, and no program's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Build, Call, Case, Tensors, both
from lab.measure.strays import _conv

ROUND = 9
#: Batch, channels, side.
PICTURES = (
    (32, 64, 96), (64, 128, 48), (64, 64, 64), (96, 32, 80), (32, 256, 40), (64, 512, 20), (96, 96, 32), (16, 1024, 24),
    (96, 768, 12), (64, 1536, 8), (192, 256, 10), (8, 64, 160), (16, 48, 128), (128, 192, 16), (256, 128, 24),
)  # fmt: skip
#: Ranks, channels of a mean, variance and count.
GATHERED = ((2, 129), (8, 513), (16, 1025), (64, 2049), (8, 4097))
#: Batch, channels in and out, length, kernel: each dilated by each of GAPS.
ROWS = (
    (4, 128, 128, 4096, 3), (16, 256, 256, 2048, 3), (4, 512, 512, 4096, 3), (4, 256, 512, 16384, 3),
    (32, 192, 384, 1024, 3),
    (8, 384, 384, 4096, 2), (2, 768, 768, 8192, 5), (64, 64, 128, 2048, 7),
)  # fmt: skip
GAPS = 1, 2, 4, 8, 16, 64
#: Batch, heads, queries, keys, width of heads.
FEW = (
    (16, 16, 384, 384, 64), (64, 12, 128, 128, 64), (24, 20, 320, 320, 64), (48, 16, 192, 192, 64),
    (128, 8, 96, 96, 64), (32, 8, 512, 128, 64), (16, 12, 128, 640, 64), (8, 16, 768, 768, 64), (32, 8, 256, 256, 128),
    (96, 6, 224, 224, 32), (4, 24, 1024, 1024, 64), (64, 16, 80, 80, 80),
)  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "mask": {"mask": True},
    "mask_dropout": {"mask": True, "dropout_p": 0.1},
    "dropout": {"dropout_p": 0.1},
    "causal": {"is_causal": True},
    "causal_dropout": {"is_causal": True, "dropout_p": 0.1},
}
#: Batch, side of the picture, channels, side of a patch.
PATCHES = (
    (128, 224, 512, 32), (64, 256, 1024, 16), (192, 192, 768, 32), (32, 384, 1024, 32), (96, 224, 640, 14),
    (48, 160, 384, 16), (256, 128, 512, 16), (16, 512, 768, 16),
)  # fmt: skip


def cases() -> Iterator[Case]:
    shape: tuple[int, ...]
    for shape in PICTURES:
        for dtype in ("fp32", "bf16"):
            for last in (False, True):
                setting = {"dtype": dtype, "last": last}
                for name, of in PARTS.items():
                    make = _part(of, shape, dtype, last)
                    yield Case("batch_norm_parts", name, shape, make, setting, round=ROUND)  # fmt: skip
    for ranks, width in GATHERED:
        for name, chosen in AMONG.items():
            make = _among(chosen, ranks, width)
            yield Case("batch_norm_gathered", name, (ranks, width), make, {"dtype": "fp32"}, round=ROUND)  # fmt: skip

    for batch, c, k, length, kernel in ROWS:
        for gap in GAPS:
            size = (batch, c, k, length, kernel, gap)
            for dtype in ("tf32", "bf16"):
                build = _conv(1, (batch, c, k, length, kernel, 1, gap), dtype)
                yield from both("rows_dilated", "conv1d", size, build, {"dtype": dtype}, ROUND)  # fmt: skip
    for shape in FEW:
        for kind, options in KINDS.items():
            build = _attended(shape, options)
            setting = {"dtype": "bf16", "backend": "cudnn", "kind": kind}
            yield from both("attention_masked", "sdpa", shape, build, setting, ROUND)
    for shape in PATCHES:
        for dtype in ("fp16", "bf16", "tf32"):
            build = _embedded(shape, dtype)
            yield from both("patch_tokens", "conv2d", shape, build, {"dtype": dtype}, ROUND)  # fmt: skip


def _attended(shape: Sequence[int], options: dict[str, Any]) -> Build:
    batch, heads, queries, keys, width = shape

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        q, k, v = (
            on.normal(batch, length, heads, width).transpose(1, 2).detach().requires_grad_()
            for length in (queries, keys, keys)
        )  # fmt: skip
        given = {name: value for name, value in options.items() if name != "mask"}
        if "mask" in options:
            given["attn_mask"] = on.normal(batch, 1, 1, keys).expand(-1, heads, queries, -1)  # fmt: skip

        def call() -> Any:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):  # fmt: skip
                return F.scaled_dot_product_attention(q, k, v, **given)

        return call, [q, k, v]

    return build


def _embedded(shape: Sequence[int], dtype: str) -> Build:
    batch, side, channels, patch = shape

    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        x = on.normal(batch, 3, side, side, dtype=dtype)
        w = on.normal(channels, 3, patch, patch, dtype=dtype, grad=True)
        return lambda: F.conv2d(x, w, None, patch).flatten(2).transpose(1, 2), [w]

    return build


Part = Callable[[Any, Any, Any, Any, Any, Any], Any]
#: Of a picture, its gradient, weight, mean, inverse deviation, and counts of two ranks.
PARTS: dict[str, Part] = {
    "stats": lambda x, g, w, m, i, n: torch.batch_norm_stats(x, 1e-5),
    "elemt": lambda x, g, w, m, i, n: torch.batch_norm_elemt(x, w, w, m, i, 1e-5),
    "backward_reduce": lambda x, g, w, m, i, n: torch.batch_norm_backward_reduce(
        g, x, m, i, w, True, True, True
    ),
    "backward_elemt": lambda x, g, w, m, i, n: torch.batch_norm_backward_elemt(
        g, x, m, i, w, m, m, n
    ),
}


def _part(of: Part, shape: Sequence[int], dtype: str, last: bool) -> Callable[[Tensors], Call]:  # fmt: skip
    batch, channels, side = shape

    def make(on: Tensors) -> Call:
        x, g = (on.normal(batch, channels, side, side, dtype=dtype) for _ in range(2))
        if last:
            x, g = (t.contiguous(memory_format=torch.channels_last) for t in (x, g))
        w, m, i = (on.positive(channels, dtype="fp32") for _ in range(3))
        n = on.below(9, 2).int() + 1
        return lambda: of(x, g, w, m, i, n)

    return make


#: Of the pictures' statistics of every rank (rows of means, deviations, a count), and which of them have elements.
AMONG: dict[str, Callable[[Any, Any, Any], Any]] = {
    "counts": lambda x, rows, mask: torch.batch_norm_gather_stats_with_counts(
        x, rows[:, :-1], rows[:, :-1], None, None, 0.1, 1e-5, rows[:, -1]
    ),
    "masked": lambda x, rows, mask: rows[mask],
}


def _among(of: Callable[..., Any], ranks: int, width: int) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        rows = on.positive(ranks, width, dtype="fp32")
        x, mask = on.normal(1, width - 1, 1, 1, dtype="fp32"), rows[:, 0] > 0
        return lambda: of(x, rows, mask)

    return make
