"""The models that training steps are measured with, in plain PyTorch; prestep predicts the same under the same names.

A Llama with separate q, k, v projections, RMSNorm by F.rms_norm, rotary embedding as elementwise kernels,
F.scaled_dot_product_attention, SwiGLU, an untied head; a mixture of eight experts with balanced top-2 routing; three
linear layers. The order of operators is part of what is measured: a change here asks for one in workloads/.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from prestep.validation.formats.usual import SIZES

EXPERTS = 8
THETA = 5e5


class RMS(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.w)


def rope(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of (..., seq, head_dim) by cosines and sines of half the width."""
    cos, sin = table
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv: int) -> None:
        super().__init__()
        self.width = hidden // heads
        self.wq = nn.Linear(hidden, heads * self.width, bias=False)
        self.wk = nn.Linear(hidden, kv * self.width, bias=False)
        self.wv = nn.Linear(hidden, kv * self.width, bias=False)
        self.wo = nn.Linear(heads * self.width, hidden, bias=False)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        batch, seq, _ = x.shape
        q, k, v = (
            layer(x).view(batch, seq, -1, self.width).transpose(1, 2)
            for layer in (self.wq, self.wk, self.wv)
        )
        q, k = rope(q, table), rope(k, table)
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return self.wo(out.transpose(1, 2).reshape(batch, seq, -1))


class MLP(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, ffn, bias=False)
        self.w3 = nn.Linear(hidden, ffn, bias=False)
        self.w2 = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class AllToAll(torch.autograd.Function):
    """An all-to-all that is its own backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        context.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor, None]:
        out = torch.empty_like(grads[0])
        dist.all_to_all_single(out, grads[0].contiguous(), group=context.group)
        return out, None


class Experts(nn.Module):
    """Top 2 of 8 experts, expert-parallel over a group, with a fixed and balanced routing (capacity factor 1)."""

    def __init__(self, hidden: int, ffn: int, group: Any, ep: int) -> None:
        super().__init__()
        self.group, self.ep = group, ep
        self.gate = nn.Linear(hidden, EXPERTS, bias=False)
        self.ex = nn.ModuleList(MLP(hidden, ffn) for _ in range(EXPERTS // ep))

    def forward(self, x: Tensor) -> Tensor:
        t = x.reshape(-1, x.shape[-1])
        p = self.gate(t).softmax(-1)
        idx = torch.arange(t.shape[0], device=x.device)
        order = self._pairs(idx).reshape(-1).argsort(stable=True)
        o = self._collected(self._computed(self._spread(t[order // 2])))
        y = torch.zeros_like(t)
        w = p.gather(1, self._pairs(idx)).reshape(-1)[order]
        y = y.index_add(0, order // 2, o * w.unsqueeze(1).to(o.dtype))
        return y.view(x.shape)

    def _spread(self, d: Tensor) -> Tensor:
        """Tokens in the order of their experts, to (experts of this rank, tokens, hidden)."""
        n, hidden = EXPERTS // self.ep, d.shape[-1]
        d = AllToAll.apply(d, self.group) if self.ep > 1 else d
        return d.view(self.ep, n, -1, hidden).transpose(0, 1).reshape(n, -1, hidden)

    def _computed(self, d: Tensor) -> Tensor:
        """What the experts of this rank make of their tokens."""
        return torch.stack([expert(d[i]) for i, expert in enumerate(self.ex)])

    def _collected(self, o: Tensor) -> Tensor:
        """Back from the experts to the order in which the tokens came."""
        n, hidden = EXPERTS // self.ep, o.shape[-1]
        o = o.view(n, self.ep, -1, hidden).transpose(0, 1).reshape(-1, hidden)
        return AllToAll.apply(o, self.group) if self.ep > 1 else o

    def _pairs(self, idx: Tensor) -> Tensor:
        return torch.stack((idx % EXPERTS, (idx + EXPERTS // 2) % EXPERTS), 1)


class Block(nn.Module):
    """A transformer block; `slow` GPU cycles of spin at its start make a slow rank."""

    slow = 0

    def __init__(
        self, hidden: int, heads: int, kv: int, ffn: int, moe: tuple[Any, int] | None
    ) -> None:
        super().__init__()
        self.n1 = RMS(hidden)
        self.attn = Attention(hidden, heads, kv)
        self.n2 = RMS(hidden)
        self.mlp = Experts(hidden, ffn, *moe) if moe else MLP(hidden, ffn)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        if self.slow:
            torch.cuda._sleep(self.slow)
        x = x + self.attn(self.n1(x), table)
        return x + self.mlp(self.n2(x))


class Llama(nn.Module):
    """A whole model, or the stage of one: `first` has the embedding, `last` the norm and the head."""

    def __init__(
        self,
        name: str,
        first: bool = True,
        last: bool = True,
        layers: Iterable[int] | None = None,
        recompute: bool = False,
        moe: tuple[Any, int] | None = None,
    ) -> None:
        super().__init__()
        hidden, count, heads, kv, ffn, vocab = SIZES[name]
        self.tok = nn.Embedding(vocab, hidden) if first else None
        chosen = range(count) if layers is None else layers
        self.layers = nn.ModuleList(Block(hidden, heads, kv, ffn, moe) for _ in chosen)
        self.norm = RMS(hidden) if last else None
        self.out = nn.Linear(hidden, vocab, bias=False) if last else None
        self.width, self.recompute = hidden // heads, recompute
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}

    def table(self, seq: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if seq not in self.tables:
            rates = 1.0 / (
                THETA
                ** (
                    torch.arange(0, self.width, 2, device=like.device).float()
                    / self.width
                )
            )
            t = torch.arange(seq, device=like.device).float()[:, None] * rates
            self.tables[seq] = t.cos().to(torch.bfloat16), t.sin().to(torch.bfloat16)
        return self.tables[seq]

    def forward(self, x: Tensor) -> Tensor:
        if self.tok is not None:
            x = self.tok(x)
        table = self.table(x.shape[1], x)
        for block in self.layers:
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(
                    block, x, table, use_reentrant=False
                )
            else:
                x = block(x, table)
        return (
            self.out(self.norm(x))
            if self.out is not None and self.norm is not None
            else x
        )


class ThreeLinear(nn.Module):
    """Two hidden layers of `size` and one output."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (
            nn.Linear(size, size),
            nn.Linear(size, size),
            nn.Linear(size, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Of (batch, seq, vocab) logits."""
    return F.cross_entropy(out.flatten(0, 1), y.flatten())
