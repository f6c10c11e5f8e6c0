"""Attention of Megatron's layers: fused kernels over this rank's heads, in a ring under context parallelism."""

from __future__ import annotations

from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges.tensor import gather, reduce
from prestep.workloads.megatron.adapter import adapted_column, adapted_row
from prestep.workloads.megatron.core_attention import attention
from prestep.workloads.megatron.documents import rotated
from prestep.workloads.megatron.elementwise import bias_add, fused, unsaved
from prestep.workloads.megatron.shard import Heads, Shard
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.activation_checkpoint import again
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

# Kernels of a rotation, forward and backward. In eager operators halves are negated and joined, then two products, a
# sum and a copy; backward the same without the copy.
FUSED_ROTATION, EAGER_ROTATION = (2, 2), (14, 12)


class Attention(Module):
    """One projection for queries, keys and values; attention over this rank's heads; the output projection."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard, window: int = 0) -> None:
        super().__init__()
        self.m, self.s = m, s
        self.heads = heads = _heads(m, s.group.size, window)
        inner = heads.queries * heads.dim
        width = _projected(m, s.group.size)
        self.qkv = self.add(t, width, m.hidden, name="linear_qkv")
        self.qkv_bias = self.add_if(t, m.qkv_bias, width, name="linear_qkv.bias")
        self.proj = self.add(t, m.hidden, inner, name="linear_proj")
        self.proj_bias = self.add_if(t, m.out_bias, m.hidden, name="linear_proj.bias")
        self.norms = self._norms(t) if m.qk_norm else []
        self.add_if(t, m.sinks, heads.queries, name="softmax_offset")

    def _norms(self, t: Tape) -> list[Tensor]:
        """Of queries and of keys, which see a head or all of them."""
        counts = (
            (self.heads.queries, self.heads.keys) if self.m.qk_norm_wide else (1, 1)
        )
        named = zip(("q_layernorm", "k_layernorm"), counts, strict=True)
        return [self.add(t, n * self.heads.dim, name=name) for name, n in named]

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s = self.s
        y = adapted_column(t, x, self.qkv, s)
        y = bias_add(t, y, self.qkv_bias)
        if self.m.kv_heads < s.group.size:
            y = whole_groups(t, y, self.heads, s)
        y = self._rotate(t, self._norm_heads(t, y))
        if s.trainer is not None and s.trainer.attention_waits:
            t.synchronize()
        attend = partial(self._attend, t)
        o = again(t, attend, y) if s.recompute_core else attend(y)
        return adapted_row(t, self._gated(t, o), self.proj, s)

    def _gated(self, t: Tape, o: Tensor) -> Tensor:
        """The output times a sigmoid of the gate, which comes out of the projection beside queries, keys and values."""
        if not self.m.attention_gate:
            return o
        return fused(t, [o], o.shape, 3 * o.size, 5 * o.size, saved=o.size)

    def _turned(self, y: Tensor) -> float:
        """Bytes of queries and keys, without values."""
        n = self.heads
        return y.size * (n.queries + n.keys) / (n.queries + 2 * n.keys)

    def _norm_heads(self, t: Tape, y: Tensor) -> Tensor:
        """Queries and keys normed head by head, where the model does that."""
        if not self.norms:
            return y
        size = self._turned(y)
        t.cpu("norm_module", len(self.norms))
        return fused(
            t,
            [y, *self.norms],
            y.shape,
            2 * size,
            3 * size,
            parameters=2,
            kernels=(2, 2),
        )

    def _rotate(self, t: Tape, y: Tensor) -> Tensor:
        """Queries and keys rotated by their positions, where the model does that."""
        if not self.m.rotary:
            return y
        if self._rotated_whole:
            return fused(t, [unsaved(y)], y.shape, 2.0 * y.size, 2.0 * y.size)
        y = rotated(t, y, self.s)
        kernels = FUSED_ROTATION if self.s.options.rope_fusion else EAGER_ROTATION
        size = self._turned(y)
        forward, backward = kernels[0] * size, kernels[1] * size
        return fused(t, [unsaved(y)], y.shape, forward, backward, kernels=kernels)

    @property
    def _rotated_whole(self) -> bool:
        """One kernel cuts the projection's output in three and rotates two; backward it joins three gradients.

        Transformer Engine, fused_rope.cu, fused_qkv_rope_forward_kernel: all of it is read and written.
        """
        return self.m.rotary and self.s.options.fused_single_qkv_rope

    def _attend(self, t: Tape, qkv: Tensor) -> Tensor:
        return attention(t, [qkv], self.heads, self.s, not self._rotated_whole)


def _heads(m: ModelSpec, ranks: int, window: int) -> Heads:
    """Of one tensor-parallel rank; keys and values are repeated where there are fewer of them than ranks."""
    alibi = m.positions == "alibi"
    keys = max(1, m.kv_heads // ranks)
    queries, width = m.heads // ranks, m.head_dim
    return Heads(queries, keys, width, width, alibi, window)


def _projected(m: ModelSpec, ranks: int) -> int:
    """Columns of the projection on one rank: of all queries, keys and values an equal part each."""
    queries = m.heads * (2 if m.attention_gate else 1)
    return (queries + 2 * m.kv_heads) * m.head_dim // ranks


def whole_groups(t: Tape, y: Tensor, heads: Heads, s: Shard) -> Tensor:
    """This rank's queries with the keys and values that it shares with others, where ranks are more than such heads.

    A rank's part of the projection holds no whole head, so all parts are gathered and a part cut out; backward the
    gradients are put in their places and reduce-scattered (Megatron 0.16, SelfAttention.get_query_key_value_tensors).
    """
    size = y.size * s.group.size
    gather(t, y, s.group)
    width = (heads.queries + 2 * heads.keys) * heads.dim
    own = t.empty((*y.shape[:-1], width), y.itemsize)
    t.launch(Kernel("aten copy", (own.elements,), bytes=2 * own.size))

    def backward(g: Tensor) -> list[Tensor | None]:
        whole = t.empty((*y.shape[:-1], y.shape[-1] * s.group.size), y.itemsize)
        t.launch(Kernel("aten copy", (whole.elements,), bytes=g.size + size))
        reduce(t, whole, s.group, sequence=True)
        return [t.empty(y.shape, y.itemsize)]

    return t.apply(own, [y], backward)
