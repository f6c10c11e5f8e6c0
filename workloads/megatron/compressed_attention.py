"""Attention over a window and compressed keys (DeepSeek-V4): queries from a compressed state, one head of keys.

Source: megatron/core/transformer/experimental_attention_variant/deepseek_v4_hybrid_attention.py (branch dev, d48bd6be),
which asserts that all heads are on one rank. Rotations are fused, whatever rope_fusion says.
"""

from __future__ import annotations

from prestep.workloads.megatron.absorbed_attention import by_group
from prestep.workloads.megatron.elementwise import fused, unsaved
from prestep.workloads.megatron.linear import column_linear, row_linear
from prestep.workloads.megatron.shard import Shard, whole
from prestep.workloads.megatron.sparse_attention import (
    Compressor,
    Indexer,
    Lists,
    SparseAttention,
)
from prestep.workloads.models import compressed
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.activation_checkpoint import detached, replayed
from prestep.workloads.torch.functional import norm
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

# A norm of each query's heads without weights, compiled: read and written; backward read with the output's gradient.
HEAD_NORM = (2.0, 3.0)


class CompressedAttention(Module):
    """Attention of a layer whose compressed keys stand for ``ratio`` tokens each; 0: it has none."""

    proj_bias = None

    def __init__(self, t: Tape, m: ModelSpec, s: Shard, ratio: int) -> None:
        super().__init__()
        self.m, self.s = m, s
        wide = m.heads * m.head_dim
        self.q_down = self.add(t, m.q_lora_rank, m.hidden, name="linear_q_down_proj")
        self.q_norm = self.add(t, m.q_lora_rank, name="q_layernorm")
        self.q_up = self.add(t, wide, m.q_lora_rank, name="linear_q_up_proj")
        self.kv = self.add(t, m.head_dim, m.hidden, name="linear_kv_proj")
        self.kv_norm = self.add(t, m.head_dim, name="kv_layernorm")
        self.sinks = self.add(t, m.heads, name="attn_sink")
        columns = m.o_groups * m.o_lora_rank
        self.group = self.add(
            t, columns, wide // m.o_groups, name="linear_o_group_proj"
        )
        self.proj = self.add(t, m.hidden, columns, name="linear_proj")
        self.compressor = self.indexer = None
        if ratio:
            self.compressor = self.child(Compressor(t, m, s, ratio, m.head_dim))
        if ratio == compressed.INDEXED:
            self.indexer = self.child(Indexer(t, m, s))
        self.core = SparseAttention(m, s, Lists.compressed(m, s, ratio))

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        states = column_linear(t, x, self.q_down, whole(self.s))
        states = norm(t, "rms", states, [self.q_norm])
        q, keys = self._expand(t, states, x)
        if self._again:
            plain = detached(states), detached(x)
            q = replayed(t, q, lambda: self._expand(t, *plain))
            keys = unsaved(keys)
        indexed = None
        if self.compressor is not None:
            keys = _behind(t, keys, self.compressor.forward(t, x))
        if self.indexer is not None:
            indexed = self.indexer.forward(t, x, states)
        o = self.core.attend(t, [q, keys, self.sinks], q.shape, indexed)
        # Turned back into a tensor of its own: backward of attention wants its output as it was.
        o = fused(t, [unsaved(o)], o.shape, 2 * o.size, 2 * o.size)
        # Outputs of each group of heads are projected apart.
        o = by_group(t, o, self.group, self.m.o_groups, self.m.o_lora_rank, self.s)
        return row_linear(t, o, self.proj, self.s)

    @property
    def _again(self) -> bool:
        """Whether queries and keys are made again in backward."""
        return "mla_up_proj" in self.s.options.recompute_modules

    def _expand(self, t: Tape, states: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries from their compressed states and keys from tokens, normed and rotated."""
        m, s = self.m, self.s
        q = column_linear(t, states, self.q_up, s)
        read, back = (moved * q.size for moved in HEAD_NORM)
        # What is made again keeps nothing.
        kept = unsaved(q) if self._again else q
        q = self._turned(t, fused(t, [kept], q.shape, read, back))
        keys = column_linear(t, x, self.kv, whole(s))
        return q, self._turned(t, norm(t, m.norm, keys, [self.kv_norm]))

    def _turned(self, t: Tape, x: Tensor) -> Tensor:
        """The last elements of each head rotated in place."""
        moved = 2.0 * x.size * self.m.rope_head_dim / self.m.head_dim
        return fused(t, [unsaved(x)], x.shape, moved, moved)


def _behind(t: Tape, keys: Tensor, more: Tensor) -> Tensor:
    """Compressed keys behind those of tokens."""
    shape = (keys.shape[0] + more.shape[0], *keys.shape[1:])
    size = keys.size + more.size
    return fused(t, [unsaved(keys), unsaved(more)], shape, 2 * size, 2 * size)
