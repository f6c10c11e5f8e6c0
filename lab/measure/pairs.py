"""Operations of kinds that twelve programs of two GPUs showed to be off (`lab/cases/pairs`).

Batch norms whose statistics are exchanged (`torch.nn.SyncBatchNorm`): their four parts in both memory formats, and rows
chosen by a mask; dilated filters of long rows. Sizes are grids, and no program's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from lab.measure.case import Call, Case, Tensors, both
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


def cases() -> Iterator[Case]:
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
