"""Attention (F.scaled_dot_product_attention, causal, bf16), forward and backward, by heads and length."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.timing import Bench, Call, Case

TITLE, NEEDS, WEIGHT, ORDER = "attention", "gpu", 12.0, 22
HEADS = (
    (32, 8, 64),
    (24, 8, 128),
    (32, 8, 128),
    (8, 2, 128),
    (16, 4, 128),
    (64, 8, 128),
    (12, 12, 64),
)
BATCHES = (
    (1, 1024),
    (1, 2048),
    (2, 2048),
    (4, 2048),
    (1, 4096),
    (2, 4096),
    (1, 8192),
    (1, 16384),
    (8, 512),
    (1, 32768),
)
NAMES = ("batch", "heads", "kv_heads", "seq", "head_dim")


def measure(session: GroupSession) -> None:
    """Shapes take turns over the first host's GPUs."""
    shapes = [(b, h, kv, s, d) for h, kv, d in HEADS for b, s in BATCHES]
    cases = [
        Case(
            f"{way} {'x'.join(map(str, shape))}",
            partial(make, session, *shape),
            {
                "kind": "attention",
                "dir": way,
                **dict(zip(NAMES, shape, strict=True)),
                "causal": True,
            },
            {"gpu": session.rank},
        )
        for shape in session.share([(1, 4, 2, 16, 8)] if session.tiny else shapes)
        for way, make in (("fwd", _forward), ("bwd", _backward))
    ]
    Bench(session, heat=0.03).rows("attention", cases, need=0.5)


def _operands(session: GroupSession, *shape: int) -> tuple[Any, Any, Any]:
    """Queries, keys and values of (batch, heads, kv heads, seq, width of a head)."""
    batch, heads, kv_heads, seq, width = shape

    def tensor(heads: int) -> Any:
        return session.randn(batch, heads, seq, width, requires_grad=True)

    return tensor(heads), tensor(kv_heads), tensor(kv_heads)


def _attend(q: Any, k: Any, v: Any) -> Any:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def _forward(session: GroupSession, *shape: int) -> Call:
    operands = _operands(session, *shape)
    return lambda: _attend(*operands)


def _backward(session: GroupSession, *shape: int) -> Call:
    operands = _operands(session, *shape)
    out = _attend(*operands)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, operands, grad, retain_graph=True)
