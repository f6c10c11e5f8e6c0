"""Elementwise operations, casts, broadcasts and reductions, over more than four decades of sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import DTYPES, Call, Case, Tensors

aten = torch.ops.aten
SIZES = tuple(2**power for power in (10, 13, 16, 18, 20, 22, 24, 26, 28))
CORE = (2**16, 2**20, 2**24, 2**26)
ODD = (3 * 5 * 7 * 11 * 13, 1_000_003, 30_000_001)

UNARY: dict[str, Callable[[Any], Any]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "log": torch.log,
    "neg": torch.neg,
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "reciprocal": torch.reciprocal,
    "softplus": F.softplus,
    "clone": torch.clone,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mul_scalar": lambda x: x * 0.5,
    "add_scalar": lambda x: x + 1.0,
    "div_scalar": lambda x: x / 3.0,
    "pow2": lambda x: x.pow(2),
    "pow3": lambda x: torch.pow(x, 3.0),
    "rsub": lambda x: 1 - x,
    "clamp": lambda x: x.clamp(-1, 1),
    "ge_scalar": lambda x: x >= 0,
    "mul_": lambda x: x.mul_(1.0),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(1.0),
    "relu_": lambda x: x.relu_(),
    "zeros_like": torch.zeros_like,
    "native_dropout": lambda x: torch.native_dropout(x, 0.1, True),
    "normal_": lambda x: x.normal_(),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "isnan": torch.isnan,
    "cumsum": lambda x: x.cumsum(0),
}
RANDOM = ("native_dropout", "normal_", "bernoulli_")
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": torch.sub,
    "div": torch.div,
    "add_": lambda x, y: x.add_(y),
    "mul_t": lambda x, y: x.mul_(y),
    "copy_": lambda x, y: x.copy_(y),
    "add_alpha": lambda x, y: torch.add(x, y, alpha=0.1),
    "maximum": torch.maximum,
    "eq": torch.eq,
    "pow_t": torch.pow,
    "silu_backward": aten.silu_backward,
    "gelu_backward": aten.gelu_backward,
    "tanh_backward": aten.tanh_backward,
    "sigmoid_backward": aten.sigmoid_backward,
    "threshold_backward": lambda x, y: aten.threshold_backward(x, y, 0),
    "lerp_scalar": lambda x, y: torch.lerp(x, y, 0.1),
    "addcmul_same": lambda x, y: torch.addcmul(x, y, y, value=0.1),
}
MASKED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "where": lambda m, x, y: torch.where(m, x, y),
    "masked_fill": lambda m, x, y: x.masked_fill(m, -1e4),
    "masked_fill_": lambda m, x, y: x.masked_fill_(m, 0.5),
    "native_dropout_backward": lambda m, x, y: aten.native_dropout_backward(x, m, 1.1),
    "where_scalar": lambda m, x, y: torch.where(m, x, 0.0),
    "addcmul": lambda m, x, y: torch.addcmul(x, y, x),
    "addcdiv_": lambda m, x, y: x.addcdiv_(x, y, value=-0.1),
}
FEW = (
    "add",
    "mul",
    "silu",
    "clone",
    "add_",
    "copy_",
    "where",
    "mul_scalar",
    "zero_",
    "gelu",
    "native_dropout",
    "silu_backward",
)
CASTS = (
    ("bf16", "fp32"),
    ("fp32", "bf16"),
    ("fp16", "fp32"),
    ("fp32", "fp16"),
    ("fp32", "fp8"),
    ("bf16", "fp8"),
    ("bool", "fp32"),
    ("int64", "fp32"),
    ("int64", "int32"),
    ("bool", "int64"),
    ("bf16", "fp16"),
    ("fp32", "fp64"),
)


# x in fp32, y in bf16, s one number in fp32
MIXED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add_fp32_bf16": lambda x, y, s: x + y,
    "add__fp32_bf16": lambda x, y, s: x.add_(y),
    "copy__fp32_bf16": lambda x, y, s: x.copy_(y),
    "copy__bf16_fp32": lambda x, y, s: y.copy_(x),
    "mul_fp32_bf16": lambda x, y, s: x * y,
    "mul_by_gpu_scalar": lambda x, y, s: x * s,
    "mul__by_gpu_scalar": lambda x, y, s: x.mul_(s),
    "div_by_gpu_scalar": lambda x, y, s: y / s,
}


def cases() -> Iterator[Case]:
    for dtype in ("bf16", "fp32", "fp16"):
        for size in (*SIZES, *ODD):
            yield from _same(size, dtype)
    for source, target in CASTS:
        for size in SIZES[1:]:
            yield _cast(
                size,
                source,
                target,
                0 if "fp32" in (source, target) and size in CORE else 1,
            )
    yield from _mixed()
    yield from _broadcasts()
    yield from _reductions()


def _round(name: str, size: int, dtype: str) -> int | None:
    if dtype == "fp16":
        return 2 if name in FEW and size in CORE else None
    if size in CORE:
        return 0 if dtype == "bf16" or name in FEW else 1
    return 1 if name in FEW else (2 if dtype == "bf16" and size not in ODD else None)


def _same(size: int, dtype: str) -> Iterator[Case]:
    """Operands of one shape and type, in order."""
    for operands, table in ((1, UNARY), (2, BINARY), (3, MASKED)):
        for name, function in table.items():
            round = _round(name, size, dtype)
            if round is not None:
                make = operands_of(function, operands, size, dtype)
                yield Case(
                    "pointwise",
                    name,
                    (size,),
                    make,
                    {"dtype": dtype},
                    round=round,
                    graph=name not in RANDOM,
                )


def operands_of(
    function: Callable[..., Any], operands: int, size: int, dtype: str
) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        values = [on.positive(size, dtype=dtype) for _ in range(min(operands, 2))]
        if operands == 3:
            values = [on.mask(size), *values]
        return lambda: function(*values)

    return make


def _cast(size: int, source: str, target: str, round: int) -> Case:
    def make(on: Tensors) -> Call:
        x, kind = on.normal(size, dtype=source), DTYPES[target]
        return lambda: x.to(kind)

    return Case(
        "pointwise",
        "cast",
        (size,),
        make,
        {"from": source, "to": target},
        round=round,
        graph=True,
    )


def _mixed() -> Iterator[Case]:
    """Gradients in fp32 that bf16 is added to, sums of bf16 with fp32, scalars that lie on the GPU."""
    for name, function in MIXED.items():
        for size in (2**14, *CORE, 2**28):
            make = _of_two_types(function, size)
            yield Case(
                "pointwise",
                name,
                (size,),
                make,
                {"dtype": "fp32,bf16"},
                round=1,
                graph=True,
            )


def _of_two_types(function: Callable[..., Any], size: int) -> Callable[[Tensors], Call]:
    def make(on: Tensors) -> Call:
        x, y, s = (
            on.normal(size, dtype="fp32"),
            on.normal(size),
            on.positive(dtype="fp32"),
        )
        return lambda: function(x, y, s)

    return make


WIDE = (
    (512, 768),
    (4096, 768),
    (16384, 3072),
    (4096, 2048),
    (16384, 4096),
    (8192, 14336),
    (25216, 768),
)
HEADS = (
    (2, 16, 2048, 64),
    (4, 32, 2048, 64),
    (8, 16, 1024, 128),
    (2, 32, 4096, 128),
    (1, 8, 512, 128),
)
OF_WIDE = (
    "mul_row",
    "add_row",
    "mul_column",
    "add_column",
    "chunks_silu_mul",
    "silu_of_chunk",
    "add_transposed",
)
OF_HEADS = ("rotary_mul", "rotary_neg_half", "rotate_half")


def _broadcast(on: Tensors, name: str, size: tuple[int, ...], dtype: str) -> Call:
    rows, width = size
    x = on.normal(rows, width, dtype=dtype)
    if name == "chunks_silu_mul":
        a, b = on.normal(rows, 2 * width, dtype=dtype).chunk(2, -1)
        return lambda: a * b
    if name == "silu_of_chunk":
        a, _ = on.normal(rows, 2 * width, dtype=dtype).chunk(2, -1)
        return lambda: F.silu(a)
    if name == "add_transposed":
        y = on.normal(width, rows, dtype=dtype).t()
        return lambda: x + y
    y = on.normal(
        *({"row": (width,), "column": (rows, 1)}[name.rpartition("_")[2]]), dtype=dtype
    )
    return (lambda: x * y) if name.startswith("mul") else (lambda: x + y)


def _rotary(on: Tensors, name: str, size: tuple[int, ...], dtype: str) -> Call:
    """As transformers rotates: queries transposed, cosines by position, halves negated and put together."""
    batch, heads, length, head = size
    q = on.normal(batch, length, heads, head, dtype=dtype).transpose(1, 2)
    cos = on.normal(batch, 1, length, head, dtype=dtype)
    if name == "rotary_mul":
        return lambda: q * cos
    if name == "rotary_neg_half":
        return lambda: -q[..., head // 2 :]
    return lambda: torch.cat((-q[..., head // 2 :], q[..., : head // 2]), dim=-1)


def _broadcasts() -> Iterator[Case]:
    for names, sizes, operands in (
        (OF_WIDE, WIDE, _broadcast),
        (OF_HEADS, HEADS, _rotary),
    ):
        for name in names:
            for size in sizes:
                for dtype in ("bf16", "fp32"):
                    make = functools.partial(
                        operands, name=name, size=size, dtype=dtype
                    )
                    round = 0 if dtype == "bf16" else 1
                    yield Case(
                        "broadcast", name, size, make, {"dtype": dtype}, round=round
                    )


REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: x.mean(d),
    "amax": lambda x, d: x.amax(d),
    "norm": lambda x, d: torch.linalg.vector_norm(x, dim=d),
    "max": lambda x, d: x.max(d),
    "argmax": lambda x, d: x.argmax(d),
    "var": lambda x, d: x.var(d),
    "logsumexp": lambda x, d: x.logsumexp(d),
    "sum_fp32": lambda x, d: x.sum(d, dtype=torch.float32),
    "any": lambda x, d: (x != 0).any(d),
    "prod": lambda x, d: x.prod(d),
    "mean_keepdim": lambda x, d: x.mean(d, keepdim=True),
}
SHAPES: Sequence[tuple[int, int]] = (
    (64, 1024),
    (512, 768),
    (4096, 768),
    (4096, 3072),
    (16384, 768),
    (16384, 4096),
    (8192, 14336),
    (65536, 1024),
    (2048, 128256),
    (25216, 3072),
    (1048576, 128),
    (128, 65536),
    (4096, 64),
    (262144, 32),
)


def _reductions() -> Iterator[Case]:
    for name, function in REDUCTIONS.items():
        for at, (rows, width) in enumerate(SHAPES):
            for dim in (-1, 0, None):
                if dim is None and name in ("max", "logsumexp", "mean_keepdim", "prod"):
                    continue
                for dtype in ("bf16", "fp32"):
                    first = name in ("sum", "mean", "norm") and at % 2 == 0
                    main = name in ("sum", "mean", "norm", "amax", "max")
                    if main or at % 3 == 1:
                        round = (
                            0
                            if first and dtype == "bf16"
                            else (1 if main and at % 2 == 0 else 2)
                        )
                        yield _reduction(name, function, rows, width, dim, dtype, round)


def _reduction(
    name: str,
    function: Callable[..., Any],
    rows: int,
    width: int,
    dim: int | None,
    dtype: str,
    round: int,
) -> Case:
    def make(on: Tensors) -> Call:
        x = on.normal(rows, width, dtype=dtype)
        return lambda: function(x, dim)

    return Case(
        "reduction",
        name,
        (rows, width),
        make,
        {"dtype": dtype, "dim": dim},
        round=round,
        graph=round == 0,
    )
