"""Latent attention whose queries go to the keys' compressed state, over tokens that an indexer chooses (DSA).

Source: megatron/core/transformer/experimental_attention_variant/{absorbed_mla,dsa}.py (main, d98e8a64). The matrix that
expands keys is multiplied into queries, and the one that expands values into the output; all heads have one key, which
is the value as well. Ranks of a tensor-parallel group have other heads, those of a context-parallel one other queries:
either gathers the compressed states of all tokens, and the indexer's keys.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from prestep.workloads.exchanges.context import STREAM, moved
from prestep.workloads.megatron.adapter import adapted_column, adapted_row
from prestep.workloads.megatron.core_attention import products
from prestep.workloads.megatron.elementwise import fused, pass_over, unsaved
from prestep.workloads.megatron.gemm import later
from prestep.workloads.megatron.linear import gradient_of
from prestep.workloads.megatron.mla import LatentAttention
from prestep.workloads.megatron.shard import Shard
from prestep.workloads.megatron.sparse_attention import Indexer, Lists, SparseAttention
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.activation_checkpoint import detached, replayed
from prestep.workloads.torch.tape import Tape, Tensor


class AbsorbedAttention(LatentAttention):
    """Attention over this rank's heads; ``ratio`` 1: with an indexer of its own, 0: to what another layer chose."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard, ratio: int) -> None:
        super().__init__(t, m, s)
        self.indexer = self.child(Indexer(t, m, s)) if ratio else None
        self.core = SparseAttention(m, s, Lists.tokens(m, s, ratio))

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        m, s = self.m, self.s
        states = self._compressed_queries(t, x)
        given = detached(states)
        q = self._absorbed(t, states)
        if "mla_up_proj" in s.options.recompute_modules:
            q = replayed(t, q, lambda: self._absorbed(t, given))
        keys = self._of_all_parts(t, self._shared_keys(t, x))
        indexed = None
        if self.indexer is not None:
            whole = (self._whole(t, detached(each)) for each in (x, given))
            indexed = self.indexer.forward(t, *whole)
            indexed = replace(indexed, keys=self._of_all_parts(t, indexed.keys))
        shape = (*q.shape[:-1], self.heads * m.kv_lora_rank)
        o = self.core.attend(t, [q, keys], shape, indexed)
        o = by_group(t, o, self.kv_up, self.heads, m.v_head_dim, s)
        return adapted_row(t, o, self.proj, s)

    def _absorbed(self, t: Tape, states: Tensor) -> Tensor:
        """Queries in the keys' compressed state, beside their rotated part."""
        m, n = self.m, self.heads
        q = adapted_column(t, states, self.q_up, self.s)
        turned = 2.0 * q.size * m.rope_head_dim / m.query_dim
        q = by_group(t, q, self.kv_up, n, m.kv_lora_rank, self.s, m.head_dim)
        shape = (*q.shape[:-1], n * (m.kv_lora_rank + m.rope_head_dim))
        joined = turned + 2.0 * q.size * shape[-1] / q.shape[-1]
        return fused(t, [unsaved(q)], shape, joined, joined)

    def _shared_keys(self, t: Tape, x: Tensor) -> Tensor:
        """The compressed state of keys and values, beside the rotated part that all heads share, of a rank's tokens."""
        states = self._whole(t, self._compressed_keys(t, x))
        shape = (*states.shape[:-1], states.shape[-1] + self.m.rope_head_dim)
        joined = 2.0 * states.size * shape[-1] / states.shape[-1]
        return fused(t, [unsaved(states)], shape, joined, joined)

    def _whole(self, t: Tape, x: Tensor) -> Tensor:
        """A value of all tokens, of which tensor-parallel ranks have a part each."""
        return gathered(t, x, self.s.group) if self.s.gathers else x

    def _of_all_parts(self, t: Tape, x: Tensor) -> Tensor:
        """A value of all tokens, of which context-parallel ranks have a part each; put in order."""
        context = self.s.context
        if context is None or context.group.size == 1:
            return x
        x = gathered(t, x, context.group, STREAM)
        return fused(t, [unsaved(x)], x.shape, 2 * x.size, 2 * x.size)


def gathered(t: Tape, x: Tensor, group: Group, stream: str = "nccl tp") -> Tensor:
    """All ranks' parts of a value behind each other; backward the sum of all ranks' gradients of its own."""
    size, shape = x.size * group.size, (x.shape[0] * group.size, *x.shape[1:])

    def exchange(op: str) -> None:
        group.collective(t, op, size, stream, "functional_collective")
        t.wait(t.record(stream))

    ways = (partial(exchange, op) for op in ("all_gather", "reduce_scatter"))
    return moved(t, x, shape, *ways)


def by_group(
    t: Tape, x: Tensor, w: Tensor, n: int, outer: int, s: Shard, inner: int = 0
) -> Tensor:
    """Parts of rows, each multiplied with a part of a weight in 16 bits (torch.einsum), and put beside each other.

    Parameters
    ----------
    n, outer : int
        Parts, and the width of each result.
    inner : int
        What is multiplied of each part; 0: all.
    """
    wide = x.shape[-1]
    rows, inner = x.elements // wide, inner or wide // n
    z = t.empty((*x.shape[:-1], n * outer), x.itemsize)
    t.cpu("linear")
    products(t, n, rows, inner, outer, ("nt",))
    pass_over(t, z.elements, 2 * z.size)
    kept = detached(x)

    def gradient() -> None:
        """The weight's, which is then added to the buffer that accumulates it."""
        products(t, n, rows, inner, outer, ("tn",))
        elements = n * inner * outer
        pass_over(t, elements, (2.0 + 2 * s.numbers.wide) * elements)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("linear_backward")
        products(t, n, rows, inner, outer, ("nn",))
        grad = t.empty(kept.shape, kept.itemsize)
        pass_over(t, grad.elements, 2 * grad.size)
        if w.requires_grad:
            later(t, gradient, (g, kept))
        return [grad, gradient_of(w)]

    return t.apply(z, [x, w], backward)
