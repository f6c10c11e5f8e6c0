"""Matrix products: of linear layers in three layouts, batched, with a bias, in fp8, and grouped by experts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lab.measure.case import Call, Case, Tensors

#: Layers of widths that are computed from others and come out odd, as torchtitan's do.
ODD = (
    (8191, 2048),
    (2048, 8191),
    (14335, 4096),
    (4096, 14335),
    (4095, 2048),
    (2048, 4095),
)
WAYS = {"nt": "forward", "nn": "gradient of the input", "tn": "gradient of the weight"}
TOKENS = ((4096, 16384), (512, 2048, 8192, 32768))


@dataclass(frozen=True)
class Model:
    """Widths of a model's linear layers on one GPU: outputs and inputs."""

    layers: tuple[tuple[int, int], ...]
    round: int = 0


def _decoder(
    hidden: int, ffn: int, qkv: int, vocab: int, tp: int = 1, round: int = 0
) -> Model:
    layers = [
        (qkv // tp, hidden),
        (hidden, hidden // tp),
        (2 * ffn // tp, hidden),
        (hidden, ffn // tp),
    ]
    return Model((*layers, (vocab // tp, hidden)), round)


MODELS = (
    Model(((768, 768), (3072, 768), (768, 3072), (30522, 768), (2, 768))),
    Model(((3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096), (50257, 1024))),
    _decoder(1024, 3072, 4096, 151936),
    _decoder(2048, 8192, 3072, 128256),
    _decoder(4096, 14336, 6144, 128256),
    _decoder(8192, 28672, 10240, 128256, tp=8, round=1),
    _decoder(8192, 28672, 10240, 128256, tp=4, round=2),
    _decoder(3072, 8192, 9216, 32064, round=1),
    _decoder(2304, 9216, 4096, 256000, round=2),
    _decoder(5120, 13824, 15360, 32000, round=2),
    Model(
        (
            (384, 96),
            (96, 384),
            (288, 96),
            (768, 192),
            (1536, 384),
            (1000, 2048),
            (1280, 320),
            (51865, 768),
        ),
        1,
    ),
)


def cases() -> Iterator[Case]:
    yield from _linears()
    yield from odd()
    yield from _random()
    yield from _biased()
    yield from _batched()
    yield from _fp8()
    yield from _grouped()


def product(
    m: int,
    n: int,
    k: int,
    dtype: str,
    layout: str,
    round: int = 0,
    out: str | None = None,
) -> Case:
    """`n` or `t` of each operand: as it lies in memory, or the transpose of that."""

    def make(on: Tensors) -> Call:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        a = (
            on.normal(m, k, dtype=dtype)
            if layout[0] == "n"
            else on.normal(k, m, dtype=dtype).t()
        )
        b = (
            on.normal(k, n, dtype=dtype)
            if layout[1] == "n"
            else on.normal(n, k, dtype=dtype).t()
        )
        if out:
            return lambda: torch.mm(a, b, out_dtype=torch.float32)
        return lambda: torch.mm(a, b)

    setting: dict[str, Any] = {
        "dtype": dtype,
        "layout": layout,
        **({"out": out} if out else {}),
    }
    return Case("mm", "mm", (m, n, k), make, setting, round=round, graph=True)


def ways(tokens: int, out: int, into: int, dtype: str, round: int) -> Iterator[Case]:
    yield product(tokens, out, into, dtype, "nt", round)
    yield product(tokens, into, out, dtype, "nn", round)
    yield product(out, into, tokens, dtype, "tn", round)


def _linears() -> Iterator[Case]:
    for later, lengths in enumerate(TOKENS):
        for tokens in lengths:
            for model in MODELS:
                for out, into in model.layers:
                    if tokens * max(out, into) <= 8192 * 152000:
                        yield from ways(
                            tokens, out, into, "bf16", max(later, model.round)
                        )
    for tokens in (2048, 16384):
        for out, into in [*MODELS[1].layers, *MODELS[3].layers]:
            if tokens * out <= 2048 * 128256:
                yield from ways(tokens, out, into, "fp16", 1)
                yield from ways(tokens, out, into, "tf32", 1)
                yield product(out, into, tokens, "bf16", "tn", 1, out="fp32")
    for tokens in (512, 4096):
        for out, into in [*MODELS[0].layers, *MODELS[3].layers[:4]]:
            yield from ways(tokens, out, into, "fp32", 1)


def odd() -> Iterator[Case]:
    """Layers whose rows do not start at multiples of 16 bytes."""
    for tokens in (2048, 4096, 8192, 16384):
        for out, into in ODD:
            yield from ways(tokens, out, into, "bf16", 2)


def _random(count: int = 110) -> Iterator[Case]:
    """Shapes by chance, evenly over the decades; every fourth has sides that are no multiple of 8."""
    chance = random.Random(7)
    for at in range(count):
        m, n, k = (int(2 ** chance.uniform(low, 14)) for low in (0, 5, 5))
        step = 1 if at % 4 == 3 else 8
        m, n, k = (max(step, side - side % step) for side in (m, n, k))
        for layout in WAYS:
            yield product(m, n, k, "bf16", layout, 1 + at % 2)
        if at % 3 == 0:
            yield product(m, n, k, ("fp16", "tf32", "fp32")[at // 3 % 3], "nt", 2)


def _biased() -> Iterator[Case]:
    """Linear layers with a bias (addmm), and with one more dimension than two."""
    for tokens in (512, 4096, 16384, 65536):
        for out, into in (
            (768, 768),
            (3072, 768),
            (768, 3072),
            (4096, 1024),
            (1024, 4096),
            (8192, 2048),
            (1000, 2048),
        ):
            for dtype in ("bf16", "fp16", "tf32"):
                if dtype == "bf16" or tokens in (512, 16384):
                    yield linear(
                        tokens,
                        out,
                        into,
                        dtype,
                        0 if dtype == "bf16" and tokens == 16384 else 1,
                    )
    for tokens in (2048, 8192, 32768):
        for out, into in ((50265, 1024), (30522, 768), (51865, 768), (1000, 1024)):
            yield linear(tokens, out, into, "bf16", 2)
        for out, into in ((3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096)):
            yield linear(tokens, out, into, "fp32", 2)
            yield _input_first(tokens, out, into, "bf16")


def linear(tokens: int, out: int, into: int, dtype: str, round: int) -> Case:
    def make(on: Tensors) -> Call:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        x, w, b = (
            on.normal(8, tokens // 8, into, dtype=dtype),
            on.normal(out, into, dtype=dtype),
            on.normal(out, dtype=dtype),
        )
        return lambda: F.linear(x, w, b)

    return Case(
        "addmm", "linear", (tokens, out, into), make, {"dtype": dtype}, round=round
    )


def _input_first(tokens: int, out: int, into: int, dtype: str) -> Case:
    """A layer that keeps its weight as inputs by outputs, as GPT-2's."""

    def make(on: Tensors) -> Call:
        x, w, b = (
            on.normal(tokens, into, dtype=dtype),
            on.normal(into, out, dtype=dtype),
            on.normal(out, dtype=dtype),
        )
        return lambda: torch.addmm(b, x, w)

    setting = {"dtype": dtype, "layout": "nn"}
    return Case("addmm", "addmm", (tokens, out, into), make, setting, round=2)


#: Windows of Swin: batch of windows and heads, rows, columns, depth.
WINDOWS = (
    (12288, 49, 49, 32),
    (24576, 49, 49, 32),
    (6144, 49, 49, 32),
    (1536, 49, 49, 32),
)


def _batched() -> Iterator[Case]:
    for batch, m, n, k in WINDOWS:
        for layout in WAYS:
            yield _bmm(batch, m, n, k, "bf16", layout, 2)
            yield _bmm(batch, m, k, n, "bf16", layout, 2)
            yield _bmm(batch, k, m, n, "bf16", layout, 2)
    yield from _batches()


def _batches() -> Iterator[Case]:
    """Attention without a fused kernel, positions of rotary embeddings, experts of one size."""
    for batch, m, n, k in (
        (64, 1024, 1024, 64), (64, 2048, 2048, 64), (128, 2048, 2048, 64), (32, 4096, 4096, 128), (384, 197, 197, 64),
        (192, 512, 512, 64), (8, 512, 14336, 4096), (64, 256, 1536, 2048), (16, 128, 128, 128), (4096, 49, 49, 32),
        (1, 64, 2048, 1), (8, 64, 1024, 1), (256, 77, 77, 64), (32, 1500, 1500, 64),
    ):  # fmt: skip
        for dtype in ("bf16", "fp16", "tf32"):
            for layout in WAYS:
                yield _bmm(batch, m, n, k, dtype, layout, 0 if dtype == "bf16" else 2)
                yield _bmm(batch, m, k, n, dtype, layout, 1 if dtype == "bf16" else 2)
        for dtype in ("bf16", "fp32"):
            yield _baddbmm(batch, m, n, k, dtype)


def _bmm(
    batch: int, m: int, n: int, k: int, dtype: str, layout: str, round: int
) -> Case:
    def make(on: Tensors) -> Call:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        a = (
            on.normal(batch, m, k, dtype=dtype)
            if layout[0] == "n"
            else on.normal(batch, k, m, dtype=dtype).mT
        )
        b = (
            on.normal(batch, k, n, dtype=dtype)
            if layout[1] == "n"
            else on.normal(batch, n, k, dtype=dtype).mT
        )
        return lambda: torch.bmm(a, b)

    return Case(
        "bmm",
        "bmm",
        (batch, m, n, k),
        make,
        {"dtype": dtype, "layout": layout},
        round=round,
    )


def _baddbmm(batch: int, m: int, n: int, k: int, dtype: str) -> Case:
    def make(on: Tensors) -> Call:
        torch.backends.cuda.matmul.allow_tf32 = False
        a, b, c = (
            on.normal(batch, *side, dtype=dtype) for side in ((m, k), (n, k), (m, n))
        )
        return lambda: torch.baddbmm(c, a, b.mT, beta=0.0, alpha=0.125)

    return Case(
        "bmm",
        "baddbmm",
        (batch, m, n, k),
        make,
        {"dtype": dtype, "layout": "nt", "beta": 0},
        round=1,
    )


def _fp8() -> Iterator[Case]:
    shapes = [
        (t, n, k)
        for t in (512, 2048, 8192, 16384)
        for n, k in (*MODELS[3].layers[:4], *MODELS[4].layers[:4])
    ]
    shapes += [
        (2048, 10240, 8192),
        (8192, 3584, 8192),
        (8192, 8192, 3584),
        (8192, 8192, 8192),
        (16, 8192, 8192),
    ]
    for m, n, k in shapes:
        for scaling in ("tensorwise", "rowwise"):
            for out, back in ((n, k), (k, n)) if m in (2048, 8192) else ((n, k),):
                yield _scaled(m, out, back, scaling)


def _scaled(m: int, n: int, k: int, scaling: str) -> Case:
    def make(on: Tensors) -> Call:
        a, b = on.normal(m, k, dtype="fp8"), on.normal(n, k, dtype="fp8").t()
        rows, columns = ((1,), (1,)) if scaling == "tensorwise" else ((m, 1), (1, n))
        scales = {
            "scale_a": on.positive(*rows, dtype="fp32"),
            "scale_b": on.positive(*columns, dtype="fp32"),
        }
        if scaling == "tensorwise":
            scales = {name: scale.reshape(()) for name, scale in scales.items()}
        return lambda: torch._scaled_mm(a, b, **scales, out_dtype=torch.bfloat16)

    return Case(
        "scaled_mm",
        "_scaled_mm",
        (m, n, k),
        make,
        {"dtype": "fp8", "scaling": scaling},
        round=1,
    )


def _grouped() -> Iterator[Case]:
    for experts, tokens, n, k in (
        (8, 8192, 14336, 4096), (8, 32768, 14336, 4096), (64, 32768, 1536, 2048), (64, 8192, 2816, 2048),
        (128, 32768, 1536, 2048), (128, 16384, 1536, 4096), (32, 16384, 2048, 2048), (16, 4096, 4096, 2048),
    ):  # fmt: skip
        for skewed in (False, True):
            yield _experts(experts, tokens, n, k, skewed, False)
            yield _experts(experts, tokens, k, n, skewed, False)
            yield _experts(experts, n, k, tokens, skewed, True)
    for size in SMALL_EXPERTS:
        yield from _small_experts(*size)


#: Experts, tokens, outputs and inputs of layers that few tokens reach.
SMALL_EXPERTS = (
    (8, 4096, 8192, 2048), (8, 4096, 2048, 4096), (16, 8192, 1024, 1024), (16, 8192, 1024, 512), (32, 8192, 1024, 2048),
    (64, 16384, 1024, 2048), (8, 2048, 4096, 2048), (8, 16384, 4096, 2048), (64, 4096, 1536, 2048),
    (128, 8192, 1536, 2048), (8, 8192, 14336, 4096), (32, 16384, 2048, 2048),
)  # fmt: skip


def _small_experts(experts: int, tokens: int, n: int, k: int) -> Iterator[Case]:
    """Forward, the gradient of the input, through weights as they lie, and that of the weights."""
    yield _experts(experts, tokens, n, k, False, False)
    yield _experts(experts, tokens, k, n, False, False, "nn")
    yield _experts(experts, n, k, tokens, False, True)


def _experts(
    experts: int,
    m: int,
    n: int,
    k: int,
    skewed: bool,
    weight: bool,
    layout: str = "nt",
) -> Case:
    """Tokens of each expert through its weight; or the gradient of the weights, where the tokens are summed over."""

    def make(on: Tensors) -> Call:
        tokens = k if weight else m
        ends = _ends(experts, tokens, skewed, on)
        if weight:
            a, b = on.normal(k, m).t(), on.normal(k, n)
        else:
            a = on.normal(m, k)
            b = (
                on.normal(experts, k, n)
                if layout == "nn"
                else on.normal(experts, n, k).mT
            )
        return lambda: torch._grouped_mm(a, b, offs=ends)

    setting = {
        "dtype": "bf16",
        "skewed": skewed,
        "way": "wgrad" if weight else "forward",
        **({"layout": layout} if layout != "nt" else {}),
    }
    return Case("grouped_mm", "_grouped_mm", (experts, m, n, k), make, setting, round=1)


def _ends(experts: int, tokens: int, skewed: bool, on: Tensors) -> Any:
    """Where each expert's rows end: even shares, or shares that fall as 1/(rank + 1)."""
    shares = [1 / (at + 1) if skewed else 1.0 for at in range(experts)]
    counts = [int(tokens * share / sum(shares)) // 16 * 16 for share in shares]
    counts[0] += tokens - sum(counts)
    return torch.tensor(counts, device=on.device).cumsum(0).to(torch.int32)
