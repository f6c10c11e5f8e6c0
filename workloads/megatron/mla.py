"""Multi-head latent attention: queries, keys and values from compressed states (DeepSeek-V2, arXiv:2405.04434).

As megatron/core/transformer/multi_latent_attention.py without absorbed matrices: the compressing projections are whole
on every tensor-parallel rank and see its part of the sequence, the expanding ones are spread over heads.
"""

from __future__ import annotations

from prestep.workloads.megatron.adapter import (
    adapted_column,
    adapted_row,
    adapted_whole,
)
from prestep.workloads.megatron.core_attention import attention
from prestep.workloads.megatron.documents import rotated
from prestep.workloads.megatron.elementwise import fused, unsaved
from prestep.workloads.megatron.shard import Heads, Shard
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.activation_checkpoint import again, detached, replayed
from prestep.workloads.torch.attention import apart
from prestep.workloads.torch.functional import norm
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor


class LatentAttention(Module):
    """Attention over this rank's heads of ``head_dim + rope_head_dim`` elements, values of ``v_head_dim``."""

    proj_bias = None

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, s
        self.heads = m.heads // s.group.size
        self._add_queries(t)
        self._add_keys(t)
        self.proj = self.add(t, m.hidden, self.heads * m.v_head_dim, name="linear_proj")

    def _add_queries(self, t: Tape) -> None:
        """Queries come from the hidden state, by way of a compressed one where the model has it."""
        m, states = self.m, self.m.q_lora_rank or self.m.hidden
        if m.q_lora_rank:
            self.q_down = self.add(t, states, m.hidden, name="linear_q_down_proj")
            self.q_norm = self.add(t, states, name="q_layernorm")
        queries = self.heads * m.query_dim
        self.q_up = self.add(t, queries, states, name="linear_q_up_proj")

    def _add_keys(self, t: Tape) -> None:
        """Keys and values come from a compressed state."""
        m, states = self.m, self.m.kv_lora_rank
        compressed = states + m.rope_head_dim
        self.kv_down = self.add(t, compressed, m.hidden, name="linear_kv_down_proj")
        self.kv_norm = self.add(t, states, name="kv_layernorm")
        expanded = self.heads * (m.head_dim + m.v_head_dim)
        self.kv_up = self.add(t, expanded, states, name="linear_kv_up_proj")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s = self.s
        q, kv = self._compressed_queries(t, x), self._compressed_keys(t, x)
        states = detached(q), detached(kv)
        q, k = self._expand(t, q, kv)
        if "mla_up_proj" in s.options.recompute_modules:
            q, k = replayed(t, q, lambda: self._expand(t, *states)), unsaved(k)
        o = self._core(t, q, k)
        return adapted_row(t, o, self.proj, s)

    def _compressed_queries(self, t: Tape, x: Tensor) -> Tensor:
        """The states that queries come from: the input, where the model does not compress them."""
        if not self.m.q_lora_rank:
            return x
        q = adapted_whole(t, x, self.q_down, self.s)
        return norm(t, "rms", q, [self.q_norm])

    def _compressed_keys(self, t: Tape, x: Tensor) -> Tensor:
        """The states that keys and values come from, normed without the rotated part, which all heads share."""
        kv = adapted_whole(t, x, self.kv_down, self.s)
        shape = (*kv.shape[:-1], self.m.kv_lora_rank)
        kv = fused(t, [unsaved(kv)], shape, 2 * kv.size, 2 * kv.size)
        return norm(t, "rms", kv, [self.kv_norm])

    def _expand(self, t: Tape, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, and keys beside values, of this rank's heads from the compressed states; rotated."""
        s = self.s
        q = adapted_column(t, q, self.q_up, s)
        kv = adapted_column(t, kv, self.kv_up, s)
        return self._rotate(t, q, kv)

    def _rotate(self, t: Tape, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates a part of each query in place, and puts the shared rotated key beside every head's own."""
        m = self.m
        turned = 2.0 * q.size * m.rope_head_dim / m.query_dim
        q = rotated(t, q, self.s)
        q = fused(t, [unsaved(q)], q.shape, turned, turned)
        width = self.heads * (m.query_dim + m.v_head_dim)
        rows = 2.0 * kv.elements // kv.shape[-1]
        moved = kv.size + rows * width
        return q, fused(t, [unsaved(kv)], (*kv.shape[:-1], width), moved, moved)

    def _core(self, t: Tape, q: Tensor, k: Tensor) -> Tensor:
        """Attention, which runs again in backward where its inner part is not kept."""
        m, s = self.m, self.s
        heads = Heads(self.heads, self.heads, m.query_dim, m.v_head_dim)
        if not s.recompute_core:
            return attention(t, [q, k], heads, s)
        # One value for the region that runs again.
        both = apart(t, [q, k])
        return again(t, lambda given: attention(t, [given], heads, s), both)
