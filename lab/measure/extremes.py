"""Sizes at both ends: single numbers and small networks, vectors and lists of a billion elements; rarer operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure import optimizers, pointwise
from lab.measure.case import DTYPES, Call, Case, Tensors

aten = torch.ops.aten
SMALL = (8, 64, 256, 4096)
LARGE = (525_336_576, 1_050_673_152)
MIDDLE = (2**12, 2**16, 2**20, 2**24, 2**26)

ENDS = (
    "add", "mul", "sub", "div", "neg", "exp", "silu", "silu_backward", "clone", "mul_scalar", "zero_", "pow2", "copy_",
)  # fmt: skip
STARTS = (
    *ENDS, "rsqrt", "sqrt", "relu", "sigmoid", "tanh", "gelu", "fill_", "ge_scalar", "where", "div_scalar",
    "add_scalar", "add_", "eq", "maximum", "threshold_backward",
)  # fmt: skip
#: In fp16 at the usual sizes.
HALF = (
    "exp", "div", "sub", "relu", "threshold_backward", "sigmoid", "tanh", "mul_scalar", "div_scalar", "gelu_backward",
    "fill_", "neg", "masked_fill", "native_dropout_backward", "add_alpha", "ge_scalar",
)  # fmt: skip
RARER: dict[str, Callable[[Any, Any], Any]] = {
    "hardswish": lambda x, y: F.hardswish(x),
    "hardswish_backward": aten.hardswish_backward,
    "hardsigmoid": lambda x, y: F.hardsigmoid(x),
    "hardsigmoid_backward": aten.hardsigmoid_backward,
    "hardtanh": lambda x, y: F.hardtanh(x),
    "leaky_relu": lambda x, y: F.leaky_relu(x),
    "leaky_relu_backward": lambda x, y: aten.leaky_relu_backward(x, y, 0.1, False),
    "elu": lambda x, y: F.elu(x),
    "mish": lambda x, y: F.mish(x),
    "erf": lambda x, y: torch.erf(x),
    "log1p": lambda x, y: torch.log1p(x),
    "sign": lambda x, y: torch.sign(x),
    "round": lambda x, y: torch.round(x),
    "minimum": torch.minimum,
    "lt": torch.lt,
    "softplus_backward": lambda x, y: aten.softplus_backward(x, y, 1, 20),
    "randn": lambda x, y: torch.randn(x.shape[0], dtype=x.dtype, device=x.device),
    "rand": lambda x, y: torch.rand(x.shape[0], dtype=x.dtype, device=x.device),
}
WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "eq": torch.eq,
    "lt": torch.lt,
    "add_scalar": lambda x, y: x + 1,
    "remainder": lambda x, y: x % 7,
}
CASTS = (
    ("bf16", "fp32"),
    ("fp32", "bf16"),
    ("bf16", "fp64"),
    ("fp32", "fp64"),
)
OF_CASTS = {
    "fp64": (2**12, 2**16, 2**20, 4_194_304, 12_582_912, 67_108_864, 197_001_216),
    "": (*SMALL[:2], 595_342_848, 1_244_659_712),
}
#: Rows and width; the last ones wide, and a few lines of many.
TABLES = (
    (8, 64), (64, 8), (256, 8), (8, 256), (2, 2_097_152), (4, 2_097_152), (2, 4_194_304), (8, 1_048_576), (32, 393_216),
    (128, 151_296), (16, 201_728), (1024, 4096), (2048, 32000), (2048, 50304), (1, 525_336_576),
)  # fmt: skip
IN_FP64 = (2**10, 2**16, 2**20, 4_194_304, 12_582_912, 67_108_864, 197_001_216, 2**28)


def cases() -> Iterator[Case]:
    yield from _usual()
    for name, function in RARER.items():
        for size in MIDDLE:
            for dtype in ("bf16", "fp32"):
                yield _of_two(name, function, size, dtype)
    for name, function in WHOLE.items():
        for size in (16, 512, *MIDDLE[:4]):
            yield _of_two(name, function, size, "int64")
    for source, target in CASTS:
        for size in OF_CASTS.get(target, OF_CASTS[""]):
            yield _cast(size, source, target)
    yield from _reductions()
    yield from _lists()


def _usual() -> Iterator[Case]:
    """Operations of `pointwise`, at sizes and in a type that it leaves out."""
    tables: tuple[dict[str, Callable[..., Any]], ...] = (
        pointwise.UNARY,
        pointwise.BINARY,
        pointwise.MASKED,
    )
    for names, sizes, dtypes in (
        (STARTS, SMALL, ("bf16", "fp32")),
        (ENDS, LARGE, ("bf16", "fp32")),
        (HALF, pointwise.CORE, ("fp16",)),
    ):
        for name in names:
            operands = next(at for at, table in enumerate(tables, 1) if name in table)
            function = tables[operands - 1][name]
            for size in sizes:
                for dtype in dtypes:
                    make = pointwise.operands_of(function, operands, size, dtype)
                    setting = {"dtype": dtype}
                    yield Case("pointwise", name, (size,), make, setting, round=3)


def _of_two(name: str, function: Callable[..., Any], size: int, dtype: str) -> Case:
    def make(on: Tensors) -> Call:
        positive = dtype != "int64"
        x, y = (
            on.positive(size, dtype=dtype) if positive else on.below(1000, size)
            for _ in range(2)
        )
        return lambda: function(x, y)

    return Case("pointwise", name, (size,), make, {"dtype": dtype}, round=3)


def _cast(size: int, source: str, target: str) -> Case:
    def make(on: Tensors) -> Call:
        x = on.normal(size, dtype=source)
        return lambda: x.to(DTYPES[target])

    setting = {"from": source, "to": target}
    return Case("pointwise", "cast", (size,), make, setting, round=3)


def _reductions() -> Iterator[Case]:
    for name in ("sum", "mean", "norm"):
        for size in TABLES:
            for dim in (-1, 0, None):
                for dtype in ("bf16", "fp32"):
                    if name == "sum" or dtype == "fp32":
                        yield _reduction(name, size, dim, dtype)
    for elements in IN_FP64:
        for name in ("sum", "norm"):
            yield _reduction(name, (1, elements), None, "fp64")


def _reduction(name: str, size: tuple[int, ...], dim: int | None, dtype: str) -> Case:
    def make(on: Tensors) -> Call:
        x = on.normal(*size, dtype=dtype)
        return functools.partial(pointwise.REDUCTIONS[name], x, dim)

    setting = {"dtype": dtype, "dim": dim}
    return Case("reduction", name, size, make, setting, round=3)


#: Lists of a model's tensors: a large one first, the others alike.
LISTS: dict[str, optimizers.Shapes] = {
    "decoder_3b_shard": [(128256, 1536), *[(8192, 1536)] * 254],
    "one_750m": [(749_241_344,)],
    "small_moe": [(2048, 768)] * 39 + [(926_000_000,)],
    "eight_64": [(64,)] * 8,
    "six_6": [(1,)] * 6,
    "experts_18": [(106_837_992,)] * 18,
}  # fmt: skip
ON_LISTS = (
    "_foreach_add_list_", "_foreach_mul_scalar_", "_foreach_div_scalars_", "_foreach_norm", "_foreach_copy_",
    "_foreach_sqrt", "_foreach_zero_", "_foreach_lerp_",
)  # fmt: skip


def _lists() -> Iterator[Case]:
    for name, shapes in LISTS.items():
        size = len(shapes), sum(torch.Size(shape).numel() for shape in shapes)
        for dtype in ("bf16", "fp32"):
            setting = {"list": name, "dtype": dtype}
            step = optimizers.fused_step(shapes, dtype)
            fused = {**setting, "how": "fused"}
            yield Case("optimizer", "adamw", size, step, fused, round=3)
            for op in ON_LISTS:
                make = optimizers.on_list(optimizers.ON_LISTS[op], shapes, dtype)
                yield Case("foreach", op, size, make, setting, round=3)
