"""Attention of Megatron's layers: fused kernels over this rank's heads, in a ring under context parallelism."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sim.graph.kernel import Kernel
from workloads.megatron import functional as M
from workloads.megatron.core_attention import unfused_attention
from workloads.megatron.shard import Shard
from workloads.models.model import ModelSpec
from workloads.torch.modules import Module
from workloads.torch.tape import Tape, Tensor


class Attention(Module):
    """One projection for queries, keys and values; attention over this rank's heads; the output projection."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard, window: int = 0) -> None:
        super().__init__()
        n, dim = s.group.size, m.head_dim
        self.m, self.s, self.window = m, s, window
        self.heads, self.kv = m.heads // n, max(1, m.kv_heads // n)
        width = (self.heads + 2 * self.kv) * dim
        self.qkv = self.add(t, width, m.hidden, name="linear_qkv")
        self.qkv_bias = self.proj_bias = None
        if m.qkv_bias:
            self.qkv_bias = self.add(t, width, name="linear_qkv.bias")
        self.proj = self.add(t, m.hidden, self.heads * dim, name="linear_proj")
        if m.bias:
            self.proj_bias = self.add(t, m.hidden, name="linear_proj.bias")
        normed = "qk" if m.qk_norm else ""
        self.norms = [self.add(t, dim, name=f"{x}_layernorm") for x in normed]
        if m.sinks:
            self.add(t, self.heads, name="softmax_offset")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s = self.s
        y = M.column_linear(t, x, self.qkv, s.group, s.sequence, s.numbers)
        y = M.bias_add(t, y, self.qkv_bias)
        y = self._turned(t, y)
        attend = partial(self._attend, t)
        o = M.again(t, attend, y) if s.recompute_core else attend(y)
        return M.row_linear(t, o, self.proj, s.group, s.sequence, s.numbers)

    def _turned(self, t: Tape, y: Tensor) -> Tensor:
        """Queries and keys normed and rotated, where the model does that."""
        turned = y.size * (self.heads + self.kv) / (self.heads + 2 * self.kv)
        if self.norms:
            inputs, shape = [y, *self.norms], y.shape
            y = M.fused(
                t, inputs, shape, 2 * turned, 3 * turned, parameters=2, kernels=(2, 2)
            )
        if not self.m.rotary:
            return y
        if self.s.options.rope_fusion:
            forward, backward = 2, 2
        else:  # halves negated and joined, two products, a sum, a copy; backward the same without the copy
            forward, backward = 14, 12
        return M.fused(
            t,
            [M.unsaved(y)],
            y.shape,
            forward * turned,
            backward * turned,
            kernels=(forward, backward),
        )

    def _attend(self, t: Tape, qkv: Tensor) -> Tensor:
        unfused = self.s.options.attention == "unfused"
        core = unfused_attention if unfused else flash_attention
        seen = in_window(self.s, self.window)
        return core(t, qkv, self.heads, self.kv, self.m.head_dim, seen)


def in_window(s: Shard, window: int) -> Shard:
    """What attention sees that looks back ``window`` tokens: causal blocks along the diagonal with as many scores.

    A kernel works in tiles of 128 keys and takes every tile that a query touches, so blocks are at least two tiles.
    With context parallelism ranks need keys of their neighbour only, which is left out.
    """
    block = max(window, 2 * 128)
    if not window or block >= s.tokens or s.options.attention == "unfused":
        return s
    return replace(
        s, batch=s.batch * max(1, 2 * s.tokens // block - 1), tokens=block, context=None
    )


def flash_attention(
    t: Tape, qkv: Tensor, heads: int, kv: int, dim: int, s: Shard
) -> Tensor:
    """One kernel forward and one backward: saves queries, keys, values, output and a float per row."""
    y = t.empty((*qkv.shape[:-1], heads * dim), qkv.itemsize)
    lse = t.empty((s.batch, heads, s.tokens), 4)
    t.cpu("attention")
    attend_ring(t, "attention_fwd", heads, kv, dim, s)
    saved = y.view(*y.shape)
    saved.node = None

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, lse, saved)
        t.cpu("attention_backward")
        attend_ring(t, "attention_bwd", heads, kv, dim, s)
        grad = t.empty(qkv.shape, qkv.itemsize)
        # dq, dk and dv come as tensors of their own and are put together for the projection's backward.
        t.launch(Kernel("cat", (grad.elements,), bytes=2 * grad.size))
        return [grad]

    return t.apply(y, [qkv], backward)


# Passes over the queries that a step of a ring needs beside its kernel: halves made contiguous and the output rescaled
# and added up; backward halves of queries, outputs and gradients, and the sum of their gradients (those of keys and
# values are added to what travels). Transformer Engine, context_parallel.py; half of them for half a block.
CORRECTED = (3.0, 5.0)


def attend_ring(t: Tape, kind: str, heads: int, kv: int, dim: int, s: Shard) -> None:
    """Attention of this rank's queries to all keys: with context parallelism in as many steps as ranks.

    Keys and values of the next step travel along a ring beside the current one (and in backward their gradients too).
    A rank holds two parts of the sequence, one from each end, so that every step of every rank is the same half of its
    block (Transformer Engine, attn_forward_func_with_cp; Liu et al. 2023). One step costs what a causal kernel over
    the rank's own tokens does; the first is that, the others are whole blocks of half the keys: the same work.
    """
    n = s.context.size if s.context is not None else 1
    shape = (s.batch, heads, kv, s.tokens, dim)
    kind = f"flash2_{kind}" if s.options.attention == "flash2" else kind
    size = 2.0 * s.batch * s.tokens * 2 * kv * dim * (1 if kind.endswith("fwd") else 2)
    query = 2.0 * s.batch * s.tokens * heads * dim
    forward = kind.endswith("fwd")
    for step in range(n):
        if s.context is not None and step < n - 1:
            s.context.collective(t, "sendrecv", size, CP_STREAM, "p2p_batch")
        t.launch(Kernel(kind, shape))
        if n > 1:
            moved = (
                CORRECTED[0] * query if forward else CORRECTED[1] * query + 3.0 * size
            )
            t.launch(Kernel("fused", (s.batch * s.tokens * heads * dim,), bytes=moved))
        if step < n - 1:
            t.wait(t.record(CP_STREAM))


CP_STREAM = "nccl cp"
