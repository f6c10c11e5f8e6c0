"""Matrix products by shape, layout and number format (bf16, fp16, tf32, fp8, scaled fp8 where PyTorch has it)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.timing import Bench, Case

TITLE, NEEDS, WEIGHT, ORDER = "matrix products", "gpu", 30.0, 20
# Hidden size, feed-forward size, heads, key and value heads, vocabulary of models of 125 M to 70 B parameters.
MODELS = {
    "1b": (2048, 8192, 32, 8, 128256),
    "3b": (3072, 8192, 24, 8, 128256),
    "8b": (4096, 14336, 32, 8, 128256),
    "70b": (8192, 28672, 64, 8, 128256),
    "125m": (768, 2048, 12, 12, 32000),
}
SQUARES = (1024, 2048, 4096, 8192)
KNOWN = (
    (16384, 8192, 1280),
    (16384, 1024, 8192),
    (16384, 8192, 7168),
    (16384, 3584, 8192),
    (8192, 8192, 8192),
)


@dataclass(frozen=True)
class Product:
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    layout: str = "nt"
    source: str = "model"

    @property
    def key(self) -> str:
        return f"{self.dtype} {self.layout} {self.m}x{self.n}x{self.k}"


def measure(session: GroupSession) -> None:
    """Each GPU of the first host takes every n-th product; squares run on all of them, which shows how they differ."""
    bench = Bench(session, heat=0.03)
    everywhere = [
        Product(n, n, n, source="every GPU")
        for n in ((64,) if session.tiny else (4096, 8192))
    ]
    mine = (
        [*everywhere, *session.share(_cases(session))]
        if session.rank < session.local_world
        else []
    )
    bench.rows("gemm", [_timed(session, case) for case in mine], need=0.3)


def _timed(session: GroupSession, product: Product) -> Case:
    """A product with the cells of its row."""
    p = product
    what, size = {"dtype": p.dtype, "layout": p.layout}, {"m": p.m, "n": p.n, "k": p.k}
    cells = {"kind": "gemm", **what, **size}
    more = {"src": p.source, "gpu": session.rank}
    return Case(p.key, lambda: _call(session, p), cells, more)


def _cases(session: GroupSession) -> list[Product]:
    """Products in the order in which they are timed, the most useful first."""
    if session.tiny:
        return [Product(32, 64, 16, dtype) for dtype in ("bfloat16", "float32")]
    shapes = _shapes()
    drawn = random.Random(7)
    random_ = [Product(*_drawn(drawn), source="random") for _ in range(320)]
    rest = [*_of_models(shapes), *random_, *_fp8(shapes)]
    drawn.shuffle(rest)  # what the time cuts off is then a sample of everything
    return [*_first(), *rest]


def _first() -> list[Product]:
    """Shapes with known times in every number format, then squares."""
    cases = [
        Product(*shape, dtype, source="known")
        for shape in KNOWN
        for dtype in ("bfloat16", "float16", "float32")
    ]
    return cases + [Product(n, n, n, source="square") for n in SQUARES]


def _of_models(shapes: Sequence[tuple[int, int, int]]) -> list[Product]:
    """Forward products of the models, and the backward ones of every third."""
    cases = [Product(*shape) for shape in shapes]
    for m, n, k in shapes[::3]:
        cases.append(Product(m, k, n, layout="nn", source="model-dgrad"))
        cases.append(Product(n, k, m, layout="tn", source="model-wgrad"))
    return cases


def _fp8(shapes: Sequence[tuple[int, int, int]]) -> list[Product]:
    """Products in fp8, scaled as a whole and by blocks of 128."""
    whole = [*KNOWN, *shapes[::5]]
    blocks = [
        (m, n, k)
        for m, n, k in [*KNOWN, *shapes[::11]]
        if k % 128 == 0 and n % 128 == 0
    ]
    return [
        *(Product(*shape, "float8_e4m3fn", source="fp8") for shape in whole),
        *(Product(*shape, "fp8_block", source="fp8") for shape in blocks),
    ]


def _shapes() -> list[tuple[int, int, int]]:
    """Forward products of the models, by tokens and tensor parallelism."""
    shapes: dict[tuple[int, int, int], None] = {}
    for hidden, ffn, heads, kv, vocab in MODELS.values():
        for tokens in (1024, 2048, 4096, 8192, 16384):
            for tp in (1, 2, 4, 8):
                qkv = (hidden + 2 * kv * (hidden // heads)) // tp
                for n, k in (
                    (qkv, hidden),
                    (hidden, hidden // tp),
                    (2 * ffn // tp, hidden),
                    (hidden, ffn // tp),
                ):
                    if (
                        n % 8 == 0
                        and k % 8 == 0
                        and (tp == 1 or tokens in (2048, 8192))
                    ):
                        shapes[tokens, n, k] = None
            if hidden <= 4096 and tokens <= 8192:
                shapes[tokens, vocab, hidden] = None
    return list(shapes)


def _drawn(drawn: random.Random) -> tuple[int, int, int]:
    m, n, k = (
        int(2 ** (low + span * drawn.random()))
        for low, span in ((4, 10), (6, 8), (6, 8))
    )
    return m, n - n % 8 or 8, k - k % 8 or 8


def _call(session: GroupSession, case: Product) -> Callable[[], Any]:
    if case.dtype in ("float8_e4m3fn", "fp8_block"):
        return _scaled(session, case)
    dtype = getattr(torch, case.dtype)
    # PyTorch multiplies fp32 in tf32 where it is let; that is what training does.
    torch.backends.cuda.matmul.allow_tf32 = case.dtype == "float32"
    m, n, k, layout = case.m, case.n, case.k, case.layout
    a = session.randn(*((k, m) if layout == "tn" else (m, k)), dtype=dtype)
    b = session.randn(*((n, k) if layout == "nt" else (k, n)), dtype=dtype)
    left = a.t() if layout == "tn" else a
    right = b.t() if layout == "nt" else b
    return lambda: left @ right


def _scaled(session: GroupSession, case: Product) -> Callable[[], Any]:
    """fp8 with one scale a tensor, or one for 128 (1 x 128 by 128 x 128) elements."""
    a = torch.randn(case.m, case.k, device=session.device).to(torch.float8_e4m3fn)
    b = torch.randn(case.n, case.k, device=session.device).to(torch.float8_e4m3fn)
    shapes: tuple[tuple[int, ...], ...] = ((), ())
    if case.dtype == "fp8_block":
        shapes = (case.k // 128, case.m), (case.n // 128, case.k // 128)
    # Outer-dim-major, as cuBLAS wants it.
    first, second = (torch.ones(shape, device=session.device).t() for shape in shapes)
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=first, scale_b=second, out_dtype=torch.bfloat16
    )
