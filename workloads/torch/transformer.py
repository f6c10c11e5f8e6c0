"""Decoder-only transformers as symbolic PyTorch modules (Llama and GPT families).

The module structure is that of a plain PyTorch model: separate q, k and v projections, norms before
attention and before the feed-forward network, rotary embedding as elementwise operators.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Protocol

from workloads.models.model import ModelSpec
from workloads.torch import functional as F
from workloads.torch import liger
from workloads.torch.adapter import Exchanges
from workloads.torch.attention import (
    attention,
    heads_view,
    merge_heads,
    rope,
    split_joined,
    with_sinks,
)
from workloads.torch.latent_attention import LatentAttention, Whole
from workloads.torch.modules import FeedForward, Linear, Module
from workloads.torch.moe import MixtureOfExperts
from workloads.torch.tape import Tape, Tensor


class Attention(Module):
    """Grouped-query attention over ``heads / shards`` heads, which looks back ``window`` tokens (0: all).

    Where the output is gated, the queries' projection makes the gates too (transformers, Qwen3NextAttention).
    """

    def __init__(self, t: Tape, m: ModelSpec, shards: int = 1, window: int = 0) -> None:
        super().__init__()
        self.window = window
        self.heads, self.kv = m.heads // shards, max(1, m.kv_heads // shards)
        self.head_dim, self.rotary = m.head_dim, m.rotary
        self.gated = m.attention_gate
        joined = t.choices is not None and t.choices.joined_qkv
        self.joined = self._joined(t, m) if joined else None
        if self.joined is None:
            self._apart(t, m)
        self.wo = self.project(t, m.hidden, self.heads * m.head_dim, "wo", m.bias)
        names = ("q_norm", "k_norm") if m.qk_norm else ()
        self.norms = [self.add(t, m.head_dim, name=name) for name in names]
        self.sinks = self.add_if(t, m.sinks, self.heads, name="sinks")

    @property
    def inward(self) -> list[Tensor]:
        """Parameters in front of attention's kernel, where projections are apart."""
        sinks = [] if self.sinks is None else [self.sinks]
        return [self.wq, self.wk, self.wv, *self.norms, *sinks]

    @property
    def query_heads(self) -> int:
        """Heads that the queries' projection makes: gates of the output are as wide as queries."""
        return self.heads * (2 if self.gated else 1)

    def _joined(self, t: Tape, m: ModelSpec) -> Tensor:
        width = (self.query_heads + 2 * self.kv) * m.head_dim
        return self.project(t, width, m.hidden, "wqkv", m.qkv_bias)

    def _apart(self, t: Tape, m: ModelSpec) -> None:
        queries = self.query_heads * m.head_dim
        self.wq = self.project(t, queries, m.hidden, "wq", m.qkv_bias)
        self.wk = self.project(t, self.kv * m.head_dim, m.hidden, "wk", m.qkv_bias)
        self.wv = self.project(t, self.kv * m.head_dim, m.hidden, "wv", m.qkv_bias)

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        t.cpu("module")
        q, k, v, *gate = self._heads(t, x, column)
        if self.norms:  # head by head, before the rotation
            of_q, of_k = self.norms[:1], self.norms[1:]
            q, k = F.norm(t, "rms", q, of_q), F.norm(t, "rms", k, of_k)
        if self.rotary and t.by_liger("rope"):
            q = liger.rope(t, q, k)
        elif self.rotary:
            q, k = rope(t, q), rope(t, k)
        o = attention(t, q, k, v, self.window)
        if self.sinks is not None:
            o = with_sinks(t, o, self.sinks)
        o = merge_heads(t, o)
        for each in gate:
            o = F.mul(t, o, F.sigmoid(t, each))
        del gate
        return row(t, o, self.wo, self.biases.get(self.wo))

    def _heads(self, t: Tape, x: Tensor, column: Linear) -> list[Tensor]:
        """Queries, keys and values, (batch, heads, seq, head_dim) each; then gates of the output, if it has some."""

        def project(w: Tensor) -> Tensor:
            # With sequence parallelism the result is longer than x.
            return column(t, x, w, self.biases.get(w))

        def heads(y: Tensor, count: int) -> Tensor:
            return heads_view(t, y, y.shape[0], y.shape[1], count, self.head_dim)

        counts = (self.heads, self.kv, self.kv)
        widths = [count * self.head_dim for count in counts]
        gates = widths[:1] if self.gated else []
        if self.joined is not None:
            parts = split_joined(t, project(self.joined), [*widths, *gates])
            by_head = [heads(p, n) for p, n in zip(parts, counts, strict=False)]
            return by_head + parts[len(counts) :]
        # Each is cut into heads before the next is made: backward merges them in this order.
        q = project(self.wq)
        gate: list[Tensor] = []
        if gates:
            q, *gate = split_joined(t, q, [*widths[:1], *gates])
        by_head = [heads(q, self.heads)]
        del q
        by_head += [heads(project(w), self.kv) for w in (self.wk, self.wv)]
        return by_head + gate


class Norm(Module):
    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        self.kind = m.norm
        for name in ("weight", "bias")[: 2 if m.norm_bias else 1]:
            self.add(t, m.hidden, name=name)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        t.cpu("module")
        if self.kind == "rms" and t.by_liger("rms_norm"):
            return liger.rms_norm(t, x, self.parameters[0])
        return F.norm(t, self.kind, x, self.parameters)


class Block(Module):
    """One transformer block; ``parallel`` decides how its projections are sharded."""

    def __init__(
        self, t: Tape, m: ModelSpec, index: int, parallel: BlockParallel
    ) -> None:
        super().__init__()
        self.index, self.parallel = index, parallel
        self.norm1 = Norm(t, m)
        self.attention = parallel.attention(t, m, m.window_of(index))
        self.norm2 = Norm(t, m)
        self.ffn = parallel.feed_forward(t, m, m.has_experts(index))
        self.parameters = (
            self.norm1.parameters
            + self.attention.parameters
            + self.norm2.parameters
            + self.ffn.parameters
        )

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        outer, t.layer = t.layer, self.index
        p = self.parallel
        t.cpu("module")
        with p.context(t):
            x = F.add(
                t,
                x,
                self.attention.forward(t, self.norm1.forward(t, x), p.column, p.row),
            )
            x = F.add(
                t, x, self.ffn.forward(t, self.norm2.forward(t, x), p.column, p.row)
            )
        t.layer = outer
        return x


class FeedForwardLayer(Protocol):
    """What a block needs of its feed-forward part."""

    parameters: list[Tensor]

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor: ...


class BlockParallel:
    """No sharding inside the block; tensor and expert parallelism override this."""

    shards = 1
    column: Linear = staticmethod(F.linear)
    row: Linear = staticmethod(F.linear)

    #: What surrounds projections that every rank has whole.
    whole_projections = Whole()

    def attention(
        self, t: Tape, m: ModelSpec, window: int
    ) -> Attention | LatentAttention:
        """A block's attention: over this rank's heads, of so many tokens (0: all)."""
        if m.latent:
            return LatentAttention(t, m, self.shards, self.whole_projections)
        return Attention(t, m, self.shards, window)

    def feed_forward(self, t: Tape, m: ModelSpec, experts: bool) -> FeedForwardLayer:
        """A block's feed-forward part, with experts or dense."""
        return MixtureOfExperts(t, m) if experts else FeedForward(t, m)

    def adapter(self, module: Module, w: Tensor, later: bool) -> Exchanges:
        """What ranks exchange for an adapter beside a module's weight; ``later``: its output is summed with others."""
        return Exchanges()

    def enter(self, t: Tape, x: Tensor) -> Tensor:
        """The embedding's output as the blocks hold it."""
        return x

    def leave(self, t: Tape, x: Tensor) -> Tensor:
        """The last block's output as the final norm wants it."""
        return x

    def context(self, t: Tape):  # type: ignore[no-untyped-def]
        return nullcontext()


class Transformer(Module):
    """A stage of a transformer: optionally the embedding, some blocks, optionally norm, head and loss.

    Parameters
    ----------
    layers : range
        Indices of the blocks this stage holds.
    first, last : bool
        Whether it holds the embedding, and the final norm with the output head.
    """

    def __init__(
        self,
        t: Tape,
        m: ModelSpec,
        layers: range,
        first: bool,
        last: bool,
        parallel: BlockParallel | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.first, self.last = m, first, last
        self.parallel = parallel or BlockParallel()
        self.token = self._tokens(t, m) if first else None
        self.position = self._positions(t, m) if first else None
        embedded = first and m.embedding_norm
        self.embedding_norm = Norm(t, m) if embedded else None
        if self.embedding_norm is not None:
            self.parameters += self.embedding_norm.parameters
        self.blocks = [Block(t, m, i, self.parallel) for i in layers]
        for block in self.blocks:
            self.parameters += block.parameters
        self.norm = Norm(t, m) if last else None
        self.head: Tensor | None = None
        if self.norm is not None:
            self.parameters += self.norm.parameters
            self.head = self._head(t, m)

    def _tokens(self, t: Tape, m: ModelSpec) -> Tensor:
        """The embedding of tokens; a tied one gets a gradient in every row, by the head."""
        # Adam finds no rows of zeros in a tied embedding.
        name = "tied embedding" if m.tied_embeddings else "embedding"
        return self.add(t, m.vocab, m.hidden, name=name)

    def _positions(self, t: Tape, m: ModelSpec) -> Tensor | None:
        """The embedding of positions, if they are learned."""
        if m.positions != "learned":
            return None
        return self.add(t, m.max_positions, m.hidden, name="position")

    def _head(self, t: Tape, m: ModelSpec) -> Tensor:
        """The output projection, which may be the tokens' embedding."""
        if m.tied_embeddings and self.token is not None:
            return self.token
        return self.add(t, m.vocab, m.hidden, name="head")

    @property
    def root_parameters(self) -> list[Tensor]:
        """Parameters outside the blocks."""
        inside = {id(p) for b in self.blocks for p in b.parameters}
        return [p for p in self.parameters if id(p) not in inside]

    def forward(
        self,
        t: Tape,
        x: Tensor | tuple[int, int],
        run_block: Callable[[Block, Tensor], Tensor],
    ) -> Tensor:
        """``x`` is (batch, seq) of token ids on the first stage, else the activation received."""
        t.cpu("module")
        h = (
            F.embedding(t, x, self.token)
            if self.token is not None and isinstance(x, tuple)
            else x
        )
        if self.position is not None and isinstance(x, tuple) and isinstance(h, Tensor):
            h = F.add_rows(t, h, F.embedding(t, (1, x[1]), self.position))
        if not isinstance(h, Tensor):
            raise TypeError(
                "a later pipeline stage needs the activation of the stage before it"
            )
        del x
        if self.embedding_norm is not None:
            h = self.embedding_norm.forward(t, h)
        if self.first:
            h = self.parallel.enter(t, h)
        for block in self.blocks:
            h = run_block(block, h)
        if self.norm is None or self.head is None:
            return h
        h = self.norm.forward(t, self.parallel.leave(t, h))
        if t.by_liger("fused_linear_cross_entropy"):
            return liger.linear_cross_entropy(t, h, self.head)
        return F.linear(t, h, self.head)
