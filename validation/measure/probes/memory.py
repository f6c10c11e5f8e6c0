"""Kernels that memory bounds: elementwise operators, norms, reductions, losses, embeddings, optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.timing import Bench, Call, Case

TITLE, NEEDS, WEIGHT, ORDER = "kernels bound by memory", "gpu", 14.0, 21


def measure(session: GroupSession) -> None:
    """Sizes take turns over the first host's GPUs."""
    Bench(session, 0.008).rows("memory", _cases(session), need=0.2)


def _cases(session: GroupSession) -> Iterator[Case]:
    """Each operator at each of this GPU's sizes; operators of a size share their tensors."""
    bf, tiny = {"dtype": "bfloat16"}, session.tiny
    for size in session.share([2**8] if tiny else [2**k for k in range(14, 30)]):
        for op, call, moved in _elementwise(session, size // 2):
            yield _case(session, call, op, **bf, elements=size // 2, bytes_moved=moved)
    tables = [(t, v) for t in (2048, 8192) for v in (32000, 128256)]
    for tokens, vocab in session.share([(64, 128)] if tiny else tables):
        for op, call in _tables(session, tokens, vocab):
            yield _case(session, call, op, tokens=tokens, vocab=vocab)
    for count in session.share([2**10] if tiny else [2**20, 2**24, 2**27, 2**29]):
        op, moved = "adamw_fused_bf16_8tensors", 14 * count
        call = _adamw(session, count)
        yield _case(session, call, op, **bf, elements=count, bytes_moved=moved)


def _case(session: GroupSession, call: Call, op: str, **what: Any) -> Case:
    cells = {"kind": "memory", "op": op, **what}
    name = f"{op} {what.get('elements', '')}".strip()
    return Case(name, lambda: call, cells, {"gpu": session.rank})


def _elementwise(session: GroupSession, n: int) -> Iterator[tuple[str, Call, int]]:
    """Operator, call and bytes moved, over n bf16 elements."""
    a, b = session.randn(n), session.randn(n)
    columns = min(n, 4096)
    rows = a[: max(1, n // 4096) * columns].view(-1, columns)
    yield "add", lambda: a + b, 6 * n
    yield "add_", lambda: a.add_(b), 6 * n
    yield "mul", lambda: a * b, 6 * n
    yield "to_fp32", lambda: a.float(), 6 * n
    for name, call in (*_of_elements(a), *_of_rows(rows)):
        yield name, call, 4 * n
    yield "zero_", lambda: b.zero_(), 2 * n
    yield "sum", lambda: a.sum(), 2 * n


def _of_elements(a: Any) -> Iterator[tuple[str, Call]]:
    """Operator and call of what reads and writes each element once."""
    yield "silu", lambda: F.silu(a)
    yield "gelu", lambda: F.gelu(a)
    yield "copy", lambda: a.clone()


def _of_rows(rows: Any) -> Iterator[tuple[str, Call]]:
    """Operator and call of what reads a matrix row by row."""
    columns = rows.shape[1]
    w = torch.ones_like(rows[0])
    yield "layer_norm", lambda: F.layer_norm(rows, (columns,), w, w)
    yield "rms_norm", lambda: F.rms_norm(rows, (columns,), w)
    yield "softmax", lambda: torch.softmax(rows, -1)
    yield "transpose", lambda: rows.t().contiguous()


def _tables(
    session: GroupSession, tokens: int, vocab: int
) -> Iterator[tuple[str, Call]]:
    logits = session.randn(tokens, vocab, requires_grad=True)
    y = torch.randint(0, vocab, (tokens,), device=session.device)

    def both() -> None:
        logits.grad = None
        F.cross_entropy(logits, y).backward()

    yield "cross_entropy_fwd", lambda: F.cross_entropy(logits, y)
    yield "cross_entropy_fwdbwd", both
    table = torch.nn.Embedding(vocab, 4096, device=session.device, dtype=logits.dtype)
    yield "embedding_fwd_h4096", lambda: table(y)


def _adamw(session: GroupSession, count: int) -> Call:
    tensors = [session.randn(count // 8, requires_grad=True) for _ in range(8)]
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor)
    optimizer = torch.optim.AdamW(tensors, fused=session.cuda)
    optimizer.step()
    return lambda: optimizer.step()
