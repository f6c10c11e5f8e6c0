"""Multi-head latent attention: queries, keys and values from compressed states (DeepSeek-V2, arXiv:2405.04434).

As megatron/core/transformer/multi_latent_attention.py without absorbed matrices: the compressing projections are whole
on every tensor-parallel rank and see its part of the sequence, the expanding ones are spread over heads.
"""

from __future__ import annotations

from dataclasses import replace

from sim.graph.kernel import Kernel
from workloads.megatron import functional as M
from workloads.megatron.attention import attend_ring
from workloads.megatron.core_attention import products
from workloads.megatron.shard import Shard
from workloads.models.model import ModelSpec
from workloads.parallel.group import Group
from workloads.torch import functional as F
from workloads.torch.modules import Module
from workloads.torch.tape import Tape, Tensor


class LatentAttention(Module):
    """Attention over this rank's heads of ``head_dim + rope_head_dim`` elements, values of ``v_head_dim``."""

    proj_bias = None

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, s
        self.heads = m.heads // s.group.size
        source = m.q_lora_rank or m.hidden
        if m.q_lora_rank:
            self.q_down = self.add(
                t, m.q_lora_rank, m.hidden, name="linear_q_down_proj"
            )
            self.q_norm = self.add(t, m.q_lora_rank, name="q_layernorm")
        self.q_up = self.add(
            t, self.heads * m.query_dim, source, name="linear_q_up_proj"
        )
        self.kv_down = self.add(
            t, m.kv_lora_rank + m.rope_head_dim, m.hidden, name="linear_kv_down_proj"
        )
        self.kv_norm = self.add(t, m.kv_lora_rank, name="kv_layernorm")
        self.kv_up = self.add(
            t,
            self.heads * (m.head_dim + m.v_head_dim),
            m.kv_lora_rank,
            name="linear_kv_up_proj",
        )
        self.proj = self.add(t, m.hidden, self.heads * m.v_head_dim, name="linear_proj")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s, m = self.s, self.m
        alone = replace_size(s.group)
        q = x
        if m.q_lora_rank:
            q = M.column_linear(t, x, self.q_down, alone, False, s.numbers)
            q = F.norm(t, "rms", q, [self.q_norm])
        kv = M.column_linear(t, x, self.kv_down, alone, False, s.numbers)
        # Values and keys are normed without the part that is rotated, which all heads share.
        kv = M.fused(
            t,
            [M.unsaved(kv)],
            (*kv.shape[:-1], m.kv_lora_rank),
            2 * kv.size,
            2 * kv.size,
        )
        kv = F.norm(t, "rms", kv, [self.kv_norm])
        kept = (
            Tensor(q.storage, q.shape, q.itemsize),
            Tensor(kv.storage, kv.shape, kv.itemsize),
        )
        q, k = self._expand(t, q, kv)
        if "mla_up_proj" in s.options.recompute_modules:
            q, k = M.replayed(t, q, lambda: self._expand(t, *kept)), M.unsaved(k)
        if not s.recompute_core:
            return M.row_linear(
                t, self._attend(t, k, q), self.proj, s.group, s.sequence, s.numbers
            )
        o = M.again(
            t, lambda given: self._attend(t, given, None), self._joined(t, q, k)
        )
        return M.row_linear(t, o, self.proj, s.group, s.sequence, s.numbers)

    def _expand(self, t: Tape, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, and keys beside values, of this rank's heads from the compressed states; rotated."""
        s = self.s
        q = M.column_linear(t, q, self.q_up, s.group, s.sequence, s.numbers)
        kv = M.column_linear(t, kv, self.kv_up, s.group, s.sequence, s.numbers)
        return self._rotate(t, q, kv)

    def _rotate(self, t: Tape, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates a part of each query in place, and puts the shared rotated key beside every head's own."""
        m = self.m
        turned = 2.0 * q.size * m.rope_head_dim / m.query_dim
        q = M.fused(t, [M.unsaved(q)], q.shape, turned, turned)
        shape = (*kv.shape[:-1], self.heads * (m.query_dim + m.v_head_dim))
        moved = kv.size + 2.0 * kv.elements // kv.shape[-1] * shape[-1]
        return q, M.fused(t, [M.unsaved(kv)], shape, moved, moved)

    def _joined(self, t: Tape, q: Tensor, k: Tensor) -> Tensor:
        """Queries beside keys and values: one value for the region that runs again, no kernel."""
        shape = (*q.shape[:-1], q.shape[-1] + k.shape[-1])
        both = Tensor(None, shape, q.itemsize)

        def backward(g: Tensor) -> list[Tensor | None]:
            _ = (g, q, k)
            return [t.empty(q.shape, q.itemsize), t.empty(k.shape, k.itemsize)]

        return t.apply(both, [q, k], backward)

    def _attend(self, t: Tape, k: Tensor, q: Tensor | None) -> Tensor:
        """The fused kernel, for heads as wide as queries and values are on average."""
        m, s = self.m, self.s
        y = t.empty((*k.shape[:-1], self.heads * m.v_head_dim), k.itemsize)
        lse = t.empty((s.batch, self.heads, s.tokens), 4)
        t.cpu("attention")
        unfused = s.options.attention == "unfused"
        if unfused:
            self._scores(t, False)
        else:
            attend_ring(
                t,
                "attention_fwd",
                self.heads,
                self.heads,
                (m.query_dim + m.v_head_dim) // 2,
                s,
            )
        saved = y.view(*y.shape)
        saved.node = None
        inputs = [x for x in (q, k) if x is not None]
        probabilities = (
            t.empty((s.batch * self.heads, s.tokens, s.seq_len)) if unfused else None
        )

        def backward(g: Tensor) -> list[Tensor | None]:
            _ = (g, lse, saved, inputs, probabilities)
            t.cpu("attention_backward")
            # Three of five products are as wide as queries, two as values.
            dim = round((3 * m.query_dim + 2 * m.v_head_dim) / 5)
            if unfused:
                self._scores(t, True)
            else:
                attend_ring(t, "attention_bwd", self.heads, self.heads, dim, s)
            grads: list[Tensor | None] = [t.empty(x.shape, x.itemsize) for x in inputs]
            t.launch(Kernel("cat", (k.elements,), bytes=2 * k.size))
            return grads

        return t.apply(y, inputs, backward)

    def _scores(self, t: Tape, backward: bool) -> None:
        """Batched products around a softmax of all scores: where no fused kernel takes such heads."""
        m, s = self.m, self.s
        n, rows = s.batch * self.heads, s.tokens
        size = 2.0 * n * rows * s.seq_len
        softmax = Kernel(
            "fused", (n * rows * s.seq_len,), bytes=(3 if backward else 2) * size
        )
        if not backward:
            products(t, n, rows, m.query_dim, s.seq_len, ("nt",))
            t.launch(softmax)
            products(t, n, rows, m.v_head_dim, s.seq_len, ("nn",))
            return
        products(t, n, rows, m.v_head_dim, s.seq_len, ("tn", "nt"))
        t.launch(softmax)
        products(t, n, rows, m.query_dim, s.seq_len, ("nn", "tn"))


def replace_size(group: Group) -> Group:
    """The group's first rank by itself: a projection that is whole on every rank."""
    return replace(group, ranks=group.ranks[:1], copies=[group.ranks[:1]])
