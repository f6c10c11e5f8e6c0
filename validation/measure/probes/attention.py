"""Attention (F.scaled_dot_product_attention, causal, bf16), forward and backward, by heads and length."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.timing import Bench

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
    bench = Bench(session, heat=0.03)
    cases = (
        [(b, h, kv, s, d) for h, kv, d in HEADS for b, s in BATCHES]
        if not session.tiny
        else [(1, 4, 2, 16, 8)]
    )
    for case in session.share(cases):
        if session.left() < 0.5:
            session.skip(
                "attention from " + "x".join(map(str, case)) + " on", "no time left"
            )
            return
        what = dict(zip(NAMES, case, strict=True))
        try:
            _one(session, bench, what)
        except Exception as error:
            session.emit(
                "micro",
                kind="error",
                at="attention",
                what=str(what),
                e=str(error)[:200],
            )


def _one(session: GroupSession, bench: Bench, what: dict[str, int]) -> None:
    def tensor(heads: int) -> Any:
        shape = what["batch"], heads, what["seq"], what["head_dim"]
        return torch.randn(
            *shape, device=session.device, dtype=torch.bfloat16, requires_grad=True
        )

    q, k, v = tensor(what["heads"]), tensor(what["kv_heads"]), tensor(what["kv_heads"])
    grouped = what["heads"] != what["kv_heads"]

    def forward() -> Any:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=grouped
        )

    out = forward()
    grad = torch.randn_like(out)
    for way, call in (
        ("fwd", forward),
        ("bwd", lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)),
    ):
        row = {**what, "causal": True, **bench(call).to_json(), "gpu": session.rank}
        session.emit("micro", kind="attention", dir=way, **row)
