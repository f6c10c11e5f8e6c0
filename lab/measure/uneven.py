"""Sums by uneven indices, filters of single pictures, layers in both memory formats, complex numbers.

Rows of one index are added one after the other, so what counts is the largest group: how many rows each index has is
fixed by the case and is its `largest`. Sizes are grids, and no program's. Every kind is a family of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from lab.measure.case import Call, Case, Tensors, both
from lab.measure.domains import Convolution
from lab.measure.kinds import _sampled
from lab.measure.programs import BY_INDEX, _norm

ROUND = 6
#: Rows of the target, width, rows that are added.
TARGETS = (
    (8, 512, 8192), (16, 1024, 16384), (16, 4096, 16384), (32, 256, 4096), (64, 64, 65536), (128, 2048, 8192),
    (4096, 256, 65536), (32000, 1024, 16384), (131072, 64, 131072),
)  # fmt: skip
#: Share of the rows that go to one index, the others evenly; "zipf": the n-th index has 1/n of the first one's.
SPREADS: tuple[float | str, ...] = (0.0, 0.2, 0.4, 0.9, "zipf")
#: Pictures, channels in and out, side, kernel, stride: narrow filters, a gradient for each picture.
NARROW = (
    (64, 8, 16, 32, 3, 1), (256, 8, 16, 16, 3, 1), (1024, 1, 8, 28, 3, 1), (256, 1, 32, 28, 5, 1),
    (64, 3, 16, 64, 3, 1), (256, 3, 64, 32, 3, 1), (1024, 3, 32, 16, 3, 1), (256, 16, 16, 32, 3, 1),
    (512, 16, 32, 16, 3, 2), (64, 32, 32, 32, 3, 1), (256, 32, 32, 16, 3, 1), (1024, 32, 64, 8, 3, 1),
    (256, 48, 48, 16, 3, 1), (128, 24, 48, 28, 3, 2), (256, 64, 64, 8, 3, 1), (128, 64, 32, 14, 1, 1),
    (512, 16, 64, 8, 1, 1), (256, 32, 16, 28, 5, 2), (128, 6, 16, 14, 5, 1), (512, 40, 80, 8, 3, 1),
)  # fmt: skip
#: Layers of one channel a group, of single pixels and of nine, as small and large networks for pictures have them.
LAYERS = (
    *(Convolution(2, 128, c, c, side, kernel, stride, c) for c, side, kernel, stride in (
        (40, 112, 3, 1), (56, 112, 3, 2), (72, 56, 3, 1), (88, 112, 5, 2), (144, 56, 5, 1), (160, 56, 3, 2),
        (224, 28, 3, 1), (224, 28, 5, 2), (448, 14, 3, 1), (448, 14, 5, 1), (672, 14, 3, 2), (896, 7, 3, 1),
        (896, 7, 5, 1),
    )),
    *(Convolution(2, 128, c, k, side, 1) for c, k, side in (
        (40, 80, 112), (80, 160, 56), (160, 80, 56), (112, 448, 28), (448, 112, 28), (224, 896, 14), (896, 224, 14),
        (448, 896, 7), (896, 448, 7),
    )),
    *(Convolution(2, 96, c, c, side, 3, stride) for c, side, stride in (
        (64, 56, 1), (128, 56, 2), (128, 28, 1), (256, 28, 2), (256, 14, 1), (512, 14, 2), (512, 7, 1),
    )),
    *(Convolution(2, 96, c, k, side, 1, stride) for c, k, side, stride in (
        (64, 256, 56, 1), (256, 64, 56, 1), (256, 512, 56, 2), (512, 128, 28, 1), (1024, 256, 14, 1),
        (1024, 2048, 14, 2), (512, 2048, 7, 1),
    )),
)  # fmt: skip
#: Batch, channels, side, dimensions of space.
NORMS = (
    (128, 40, 112, 2), (128, 88, 56, 2), (128, 160, 56, 2), (128, 224, 28, 2), (128, 448, 14, 2), (128, 896, 7, 2),
    (96, 64, 112, 2), (96, 256, 56, 2), (96, 1024, 14, 2),
)  # fmt: skip
#: Batch, channels, side and kept modes of spectra.
SPECTRA = ((16, 32, 192, 20), (8, 64, 256, 32), (32, 48, 128, 16), (4, 128, 256, 16))


def cases() -> Iterator[Case]:
    yield from _indexed()
    for size in NARROW:
        for dtype in ("tf32", "bf16"):
            make = _sampled(size, dtype)
            yield Case(
                "conv_by_sample_narrow", "conv2d", size, make, {"dtype": dtype}, "bwd", ROUND
            )  # fmt: skip
    yield from _layers()
    for shape in NORMS:
        for dtype in ("fp16", "bf16", "fp32"):
            build = _norm(shape, dtype, True)
            setting = {"dtype": dtype}
            yield from both(
                "norm_of_pictures", "batch_norm", shape, build, setting, ROUND
            )
    yield from _complex()


def _indexed() -> Iterator[Case]:
    for size in TARGETS:
        rows, _, count = size
        for spread in SPREADS:
            groups = _groups(rows, count, spread)
            for name in ("index_put_accumulate", "index_add", "scatter_add", "embedding_gradient"):  # fmt: skip
                for dtype in ("fp32", "bf16"):
                    for ordered in (False, True):
                        if ordered and spread not in (0.4, "zipf"):
                            continue
                        if name == "scatter_add" and (ordered or spread == 0.2):
                            continue
                        setting = {
                            "dtype": dtype,
                            "spread": spread,
                            "sorted": ordered,
                            "largest": max(groups),
                        }
                        make = _uneven(BY_INDEX[name], size, dtype, groups, ordered)
                        yield Case(
                            "uneven_indices", name, size, make, setting, round=ROUND
                        )


def _groups(rows: int, count: int, spread: float | str) -> list[int]:
    """How many of `count` rows each index has."""
    if spread == "zipf":
        weights = [1.0 / (1 + at) for at in range(rows)]
    else:
        hot = max(float(spread), 1.0 / rows)
        weights = [hot] + [(1.0 - hot) / (rows - 1)] * (rows - 1)
    total, done, seen, groups = sum(weights), 0, 0.0, []
    for weight in weights:
        seen += weight / total
        groups.append(round(seen * count) - done)
        done += groups[-1]
    return groups


def _uneven(
    function: Callable[..., Any],
    size: tuple[int, ...],
    dtype: str,
    groups: Sequence[int],
    ordered: bool,
) -> Callable[[Tensors], Call]:
    rows, width, count = size

    def make(on: Tensors) -> Call:
        x, y = on.normal(rows, width, dtype=dtype), on.normal(count, width, dtype=dtype)
        each = torch.tensor(groups, device=x.device)
        ids = torch.arange(rows, device=x.device).repeat_interleave(
            each, output_size=count
        )
        if not ordered:
            ids = ids[torch.randperm(count, device=x.device)]
        return lambda: function(x, y, ids)

    return make


def _layers() -> Iterator[Case]:
    for layer in LAYERS:
        kind = "grouped" if layer.groups > 1 else f"{layer.kernel}x{layer.kernel}"
        for dtype in ("fp16", "bf16", "tf32"):
            for last in (False, True):
                if dtype == "bf16" and not last:
                    continue
                setting = {"dtype": dtype, "channels_last": last}
                build = _layer(layer, dtype, last)
                family = f"conv_picture_{kind}"
                yield from both(family, "conv2d", layer.size, build, setting, ROUND)


def _layer(
    layer: Convolution, dtype: str, last: bool
) -> Callable[[Tensors], tuple[Call, Sequence[Any]]]:
    def build(on: Tensors) -> tuple[Call, Sequence[Any]]:
        torch.backends.cudnn.benchmark = False
        x, weight = layer.operands(on, dtype)
        if last:
            x, weight = (
                each.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
                for each in (x, weight)
            )  # fmt: skip
        return lambda: layer.call(x, weight), [x, weight]

    return build


# s, other: spectra; x: what has the shape of the modes that are kept; weight: one matrix a mode.
OF_SPECTRA: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "zeros": lambda s, other, x, weight: torch.zeros_like(s),
    "add": lambda s, other, x, weight: s + other,
    "mul": lambda s, other, x, weight: s * other,
    "conj_copy": lambda s, other, x, weight: s.conj().resolve_conj(),
    "abs": lambda s, other, x, weight: s.abs(),
    "keep": lambda s, other, x, weight: s[
        :, :, : x.shape[2], : x.shape[3]
    ].contiguous(),
    "put": lambda s, other, x, weight: s[:, :, : x.shape[2], : x.shape[3]].copy_(x),
    "slice_backward": lambda s, other, x, weight: torch.ops.aten.slice_backward(
        x, [*x.shape[:3], s.shape[3]], 3, 0, x.shape[3], 1
    ),
    "modes_first": lambda s, other, x, weight: x.permute(2, 3, 0, 1).contiguous(),
    "product_of_modes": lambda s, other, x, weight: torch.bmm(
        x.permute(2, 3, 0, 1).flatten(0, 1), weight
    ),
}


def _complex() -> Iterator[Case]:
    for size in SPECTRA:
        for name, function in OF_SPECTRA.items():
            make = _spectrum(function, size)
            yield Case("complex", name, size, make, {"dtype": "complex64"}, round=ROUND)


def _spectrum(
    function: Callable[..., Any], size: tuple[int, ...]
) -> Callable[[Tensors], Call]:
    batch, channels, side, modes = size

    def make(on: Tensors) -> Call:
        whole = (batch, channels, side, side // 2 + 1)
        s, other = (on.normal(*whole, dtype="complex64") for _ in range(2))
        x = on.normal(batch, channels, modes, modes, dtype="complex64")
        weight = on.normal(modes * modes, channels, channels, dtype="complex64")
        return lambda: function(s, other, x, weight)

    return make
