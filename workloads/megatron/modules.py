"""Megatron's layers as symbolic modules: transformer layer, embedding, head with loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sim.graph.kernel import Kernel
from workloads.megatron import functional as M
from workloads.megatron.core_attention import unfused_attention
from workloads.megatron.mla import LatentAttention
from workloads.megatron.moe import Experts
from workloads.torch import functional as F
from workloads.torch.tape import Tensor
from workloads.torch.transformer import Module

if TYPE_CHECKING:
    from sim.spec.sections import Megatron
    from workloads.megatron.spread import Spread
    from workloads.models.model import ModelSpec
    from workloads.parallel.group import Group
    from workloads.torch.tape import Tape


@dataclass(frozen=True)
class Shard:
    """How a layer is spread: its tensor-parallel group, and the tokens that this rank sees of a microbatch."""

    group: Group
    sequence: bool
    options: Megatron
    numbers: M.Numbers
    batch: int
    tokens: int  # of one sample on this rank, after context parallelism
    seq_len: int
    context: Group | None = None
    recompute_core: bool = False  # attention's inner part is run again in backward
    spread: Spread | None = None  # of experts

    @property
    def rows(self) -> int:
        """Sequence positions between tensor-parallel regions."""
        return self.tokens // (self.group.size if self.sequence else 1)


class Norm(Module):
    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        self.kind = m.norm
        for name in ("weight", "bias")[: 2 if m.norm_bias else 1]:
            self.add(t, m.hidden, name=name)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        return F.norm(t, self.kind, x, self.parameters)


class Attention(Module):
    """One projection for queries, keys and values; attention over this rank's heads; the output projection."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard, window: int = 0) -> None:
        super().__init__()
        n = s.group.size
        self.m, self.s, self.window = m, s, window
        self.heads, self.kv = m.heads // n, max(1, m.kv_heads // n)
        width = (self.heads + 2 * self.kv) * m.head_dim
        self.qkv = self.add(t, width, m.hidden, name="linear_qkv")
        self.qkv_bias = (
            self.add(t, width, name="linear_qkv.bias") if m.qkv_bias else None
        )
        self.proj = self.add(t, m.hidden, self.heads * m.head_dim, name="linear_proj")
        self.proj_bias = (
            self.add(t, m.hidden, name="linear_proj.bias") if m.bias else None
        )
        self.norms = [
            self.add(t, m.head_dim, name=f"{x}_layernorm") for x in "qk" if m.qk_norm
        ]
        if m.sinks:
            self.add(t, self.heads, name="softmax_offset")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s, m = self.s, self.m
        y = M.column_linear(t, x, self.qkv, s.group, s.sequence, s.numbers)
        y = M.bias_add(t, y, self.qkv_bias)
        turned = y.size * (self.heads + self.kv) / (self.heads + 2 * self.kv)
        if self.norms:
            y = M.fused(
                t,
                [y, *self.norms],
                y.shape,
                2 * turned,
                3 * turned,
                parameters=2,
                kernels=(2, 2),
            )
        if m.rotary and s.options.rope_fusion:
            y = M.fused(
                t, [M.unsaved(y)], y.shape, 2 * turned, 2 * turned, kernels=(2, 2)
            )
        elif m.rotary:  # halves negated and joined, two products, a sum, a copy; backward the same without the copy
            y = M.fused(
                t, [M.unsaved(y)], y.shape, 14 * turned, 12 * turned, kernels=(14, 12)
            )
        core = (
            unfused_attention if s.options.attention == "unfused" else flash_attention
        )

        seen = in_window(s, self.window)

        def attend(qkv: Tensor) -> Tensor:
            return core(t, qkv, self.heads, self.kv, m.head_dim, seen)

        o = again(t, attend, y) if s.recompute_core else attend(y)
        return M.row_linear(t, o, self.proj, s.group, s.sequence, s.numbers)


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


def again(t: Tape, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Keeps only the input of a region, which runs again before its backward (tensor_parallel.checkpoint)."""
    with t.no_grad():
        out = run(x)
    kept = Tensor(x.storage, x.shape, x.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        kept.requires_grad, kept.name = True, "detached"
        y = run(kept)
        t.backward(y, g)
        grad, kept.grad = kept.grad, None
        return [grad]

    return t.apply(out, [x], backward)


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


class FeedForward(Module):
    """One projection up (for gated ones both halves at once), the activation, and one down."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, s
        inner = m.ffn // s.group.size
        up = inner * (2 if m.gated else 1)
        self.fc1 = self.add(t, up, m.hidden, name="linear_fc1")
        self.fc1_bias = self.add(t, up, name="linear_fc1.bias") if m.bias else None
        self.fc2 = self.add(t, m.hidden, inner, name="linear_fc2")
        self.fc2_bias = (
            self.add(t, m.hidden, name="linear_fc2.bias") if m.bias else None
        )

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s = self.s
        y = M.column_linear(t, x, self.fc1, s.group, s.sequence, s.numbers)
        y = M.activate(t, y, self.fc1_bias, self.m.gated, s.options)
        return M.row_linear(t, y, self.fc2, s.group, s.sequence, s.numbers)


class Layer(Module):
    """A transformer layer: attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(
        self, t: Tape, m: ModelSpec, s: Shard, experts: bool = False, window: int = 0
    ) -> None:
        super().__init__()
        self.s = s
        self.norm1 = Norm(t, m)
        self.attention = (
            LatentAttention(t, m, s) if m.latent else Attention(t, m, s, window)
        )
        self.norm2 = Norm(t, m)
        self.ffn = (
            Experts(t, m, s, s.spread)
            if experts and s.spread is not None
            else FeedForward(t, m, s)
        )
        for part in (self.norm1, self.attention, self.norm2, self.ffn):
            self.parameters += part.parameters

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        o = self.s.options
        t.cpu("module", 4)
        with t.capture("attn" in o.cuda_graph_scope):
            y = self.attention.forward(t, self._norm(t, self.norm1, x))
            x = M.bias_dropout_add(t, y, self.attention.proj_bias, x, o)
        if isinstance(self.ffn, Experts):  # one graph holds what is captured of a layer
            with t.capture(
                "moe_router" in o.cuda_graph_scope, "attn" not in o.cuda_graph_scope
            ):
                y = self._norm(t, self.norm2, x)
            y = self.ffn.forward(t, y)
        else:
            with t.capture(
                "mlp" in o.cuda_graph_scope, "attn" not in o.cuda_graph_scope
            ):
                y = self._feed_forward(t, self._norm(t, self.norm2, x))
        return M.bias_dropout_add(t, y, self.ffn.fc2_bias, x, o)

    def _norm(self, t: Tape, norm: Norm, x: Tensor) -> Tensor:
        return M.discarded(
            t,
            lambda given: norm.forward(t, given),
            x,
            "layernorm" in self.s.options.recompute_modules,
        )

    def _feed_forward(self, t: Tape, x: Tensor) -> Tensor:
        if "mlp" in self.s.options.recompute_modules:
            return again(t, lambda given: self.ffn.forward(t, given), x)
        return self.ffn.forward(t, x)


def padded_vocab(vocab: int, shards: int, multiple: int) -> int:
    """Megatron pads the vocabulary so that every rank's part is a multiple, by default of 128 (training/tokenizer)."""
    unit = multiple * shards
    return -(-vocab // unit) * unit


class Embedding(Module):
    """Rows of the vocabulary spread over the group: looked up where they lie, summed over ranks."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, s
        self.vocab = (
            padded_vocab(m.vocab, s.group.size, s.options.vocab_multiple)
            // s.group.size
        )
        self.token = self.add(t, self.vocab, m.hidden, name="embedding")
        learned = m.positions == "learned"
        self.position = (
            self.add(t, m.max_positions, m.hidden, name="position") if learned else None
        )
        self.norm = Norm(t, m) if m.embedding_norm else None
        self.parameters += self.norm.parameters if self.norm is not None else []

    def forward(self, t: Tape) -> Tensor:
        m, s = self.m, self.s
        x = F.embedding(t, (s.tokens, s.batch), self.token)
        if s.group.size > 1:
            t.launch(
                Kernel("fused", (x.elements,), bytes=2 * x.size)
            )  # rows of other ranks' words are zeroed
            M.reduce(t, x, s.group, s.sequence)
        if self.position is not None:
            x = F.add(t, x, F.embedding(t, (s.tokens, s.batch), self.position))
        if self.norm is not None:
            x = self.norm.forward(t, x)
        if s.options.hidden_dropout:
            x = M.fused(
                t, [M.unsaved(x)], x.shape, 2.5 * x.size, 2.5 * x.size, x.elements
            )
        if s.sequence:
            part = t.empty((s.rows, s.batch, m.hidden))
            whole = x.size
            x = t.apply(
                part,
                [x],
                lambda g: [t.empty((s.tokens, s.batch, m.hidden))] if whole else [None],
            )
        return x


class Head(Module):
    """Final norm, logits of this rank's words, and the cross entropy over all ranks' words."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, s
        self.norm = Norm(t, m)
        self.parameters += self.norm.parameters
        self.vocab = (
            padded_vocab(m.vocab, s.group.size, s.options.vocab_multiple)
            // s.group.size
        )
        self.weight = self.add(t, self.vocab, m.hidden, name="head")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s = self.s
        logits = M.column_linear(
            t, self.norm.forward(t, x), self.weight, s.group, s.sequence, s.numbers
        )
        return cross_entropy(t, logits, s)


# Passes over the fp32 logits by vocab_parallel_cross_entropy: cast, maximum, subtraction, exponential, sum, division;
# backward: one-hot subtraction with scaling, and the cast back (tensor_parallel/cross_entropy.py). In bytes a logit.
LOSS_STEPS = (6.0, 4.0, 8.0, 8.0, 4.0, 8.0)
LOSS_BACKWARD = (8.0, 8.0, 6.0)


def cross_entropy(t: Tape, logits: Tensor, s: Shard) -> Tensor:
    """Vocabulary-parallel cross entropy in fp32: three small all-reduces; saves the probabilities."""
    tokens, n = s.tokens * s.batch, logits.elements
    t.cpu("loss", 3)
    fused = s.options.cross_entropy_fusion
    for i, moved in enumerate((6.0, 8.0, 8.0) if fused else LOSS_STEPS):
        t.launch(Kernel("fused", (n,), bytes=moved * n))
        if s.group.size > 1 and i in ((1, 2) if fused else (1, 3, 4)):
            M.begin(
                t, "all_reduce", tokens * (8.0 if fused and i == 2 else 4.0), s.group
            )
            t.wait(t.record(M.STREAM))
    probabilities = t.empty(logits.shape, 4)
    shape, itemsize = logits.shape, logits.itemsize

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, probabilities)
        t.cpu("loss_backward")
        for moved in (10.0,) if fused else LOSS_BACKWARD:
            t.launch(Kernel("fused", (n,), bytes=moved * n))
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty((1,), 4), [logits], backward)
