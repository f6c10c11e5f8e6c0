"""Blocks of decoder-only transformers as symbolic PyTorch modules (Llama and GPT families).

The module structure is that of a plain PyTorch model: separate q, k and v projections, norms before
attention and before the feed-forward network, rotary embedding as elementwise operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from prestep.sim.extras import lazily
from prestep.workloads.models import hybrid
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.attention import (
    attention,
    by_head,
    merge_heads,
    rope,
    split_joined,
    with_sinks,
)
from prestep.workloads.torch.modules import FeedForward, Linear, Module
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.torch import adapter as adapters
    from prestep.workloads.torch import (
        latent_attention,
        liger,
        moe,
        scan_layers,
        vision_attention,
    )


class Attention(Module):
    """Grouped-query attention over ``heads / shards`` heads, which looks back ``window`` tokens (0: all).

    Where the output is gated, the queries' projection makes the gates too (transformers, Qwen3NextAttention).
    """

    label = "attention"

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
        own = [] if self.sinks is None else [self.sinks]
        if t.written_out:  # transformers passes the input by name
            return t.call_by_name(own, lambda: self._attended(t, x, column, row))
        return t.call(own, x, lambda x: self._attended(t, x, column, row))

    def _attended(self, t: Tape, x: Tensor, column: Linear, row: Linear) -> Tensor:
        q, k, v, *gate = self._heads(t, x, column)
        if self.norms:  # head by head, before the rotation
            of_q, of_k = self.norms
            q, k = self._normed(t, q, of_q), self._normed(t, k, of_k)
        if self.rotary and t.by_liger("rope"):
            q = liger.rope(t, q, k)
        elif self.rotary:
            q, k = rope(t, q), rope(t, k)
        o = attention(t, q, k, v, self.window)
        if self.sinks is not None:
            o = with_sinks(t, o, self.sinks)
        o = merge_heads(t, o)
        for each in gate:
            o = aten.mul(t, o, aten.activation(t, "sigmoid", each))
        del gate
        return row(t, o, self.wo, self.biases.get(self.wo))

    def _normed(self, t: Tape, x: Tensor, weight: Tensor) -> Tensor:
        return t.call([weight], x, lambda x: F.norm(t, "rms", x, [weight]))

    def _heads(self, t: Tape, x: Tensor, column: Linear) -> list[Tensor]:
        """Queries, keys and values, (batch, heads, seq, head_dim) each; then gates of the output, if it has some."""

        def project(w: Tensor) -> Tensor:
            # With sequence parallelism the result is longer than x.
            return column(t, x, w, self.biases.get(w))

        counts = (self.heads, self.kv, self.kv)
        widths = [count * self.head_dim for count in counts]
        gates = widths[:1] if self.gated else []
        if self.joined is not None:
            parts = split_joined(t, project(self.joined), [*widths, *gates])
            heads = [by_head(t, p, n) for p, n in zip(parts, counts, strict=False)]
            return heads + parts[len(counts) :]
        # Each is cut into heads before the next is made: backward merges them in this order.
        q = project(self.wq)
        gate: list[Tensor] = []
        if gates:
            q, *gate = split_joined(t, q, [*widths[:1], *gates])
        heads = [by_head(t, q, self.heads)]
        del q
        heads += [by_head(t, project(w), self.kv) for w in (self.wk, self.wv)]
        return heads + gate


class Norm(Module):
    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        self.kind, self.least = m.norm, 1e-6 if m.patch else None
        for name in ("weight", "bias")[: 2 if m.norm_bias else 1]:
            self.add(t, m.hidden, name=name)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        t.cpu("module")
        return t.call(self.parameters, x, partial(self._normed, t))

    def _normed(self, t: Tape, x: Tensor) -> Tensor:
        if self.kind == "rms" and t.by_liger("rms_norm"):
            return liger.rms_norm(t, x, self.parameters[0])
        return F.norm(t, self.kind, x, self.parameters, self.least)


class Block(Module):
    """Parts of a transformer block, each behind a norm and added to the residual; ``parallel`` decides how they split.

    It is what FSDP gathers, checkpointing runs again and a compiler sees at once. Of hybrids it is a layer of the
    pattern, which has one part (NemotronHBlock); models whose blocks have two are two such layers a block.
    """

    def __init__(
        self, t: Tape, m: ModelSpec, index: int, parallel: BlockParallel
    ) -> None:
        super().__init__()
        self.index, self.parallel = index, parallel
        #: Norms and what is behind each.
        self.branches: list[tuple[Norm, Part]] = []
        for letter in m.letters_of(index):
            norm = self.child(Norm(t, m))
            part = parallel.part(t, m, letter, index)
            self.parameters += part.parameters
            self.branches.append((norm, part))

    @property
    def parts(self) -> list[Part]:
        """What is behind the norms."""
        return [part for _, part in self.branches]

    @property
    def experts(self) -> moe.MixtureOfExperts | None:
        """Its layer of experts, if it has one."""
        found = (p for p in self.parts if isinstance(p, moe.MixtureOfExperts))
        return next(found, None)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        outer, t.layer = t.layer, self.index
        t.cpu("module")
        x = t.call([], x, lambda x: self.through(t, x, self.branches))
        t.layer = outer
        return x

    def through(
        self, t: Tape, x: Tensor, branches: Sequence[tuple[Norm, Part]]
    ) -> Tensor:
        """The residual after some of its branches."""
        p = self.parallel
        for norm, part in branches:
            with t.within(part.label):
                y = part.forward(t, _normed(t, norm, x), p.column, p.row)
            x = aten.add(t, x, y)
            del y
        return x


def _normed(t: Tape, norm: Norm, x: Tensor) -> Tensor:
    with t.within("norm"):
        return norm.forward(t, x)


class Part(Protocol):
    """What stands behind a norm: attention, a feed-forward network, experts, or a scan."""

    label: str
    parameters: list[Tensor]

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor: ...


class BlockParallel:
    """No sharding inside the block; tensor and expert parallelism override this."""

    shards = 1
    column: Linear = staticmethod(F.linear)
    row: Linear = staticmethod(F.linear)

    #: What surrounds projections that every rank has whole; None: nothing.
    whole_projections: latent_attention.Whole | None = None

    def part(self, t: Tape, m: ModelSpec, letter: str, index: int) -> Part:
        """A part of the ``index``-th block by its letter, as patterns of hybrids have it."""
        if letter in hybrid.SCANS:
            return scan_layers.LAYERS[letter](t, m)
        if letter == hybrid.ATTENTION:
            return self.attention(t, m, index)
        return self.feed_forward(t, m, letter == hybrid.EXPERTS)

    def attention(self, t: Tape, m: ModelSpec, index: int) -> Part:
        """The attention of the ``index``-th block, over this rank's heads."""
        if m.patch:
            return vision_attention.VisionAttention(t, m)
        if m.latent:
            whole = self.whole_projections
            return latent_attention.LatentAttention(t, m, self.shards, whole, index)
        return Attention(t, m, self.shards, m.window_of(index))

    def feed_forward(self, t: Tape, m: ModelSpec, experts: bool) -> Part:
        """A block's feed-forward part, with experts or dense."""
        return moe.MixtureOfExperts(t, m) if experts else FeedForward(t, m)

    def adapter(self, module: Module, w: Tensor, later: bool) -> adapters.Exchanges:
        """What ranks exchange for an adapter beside a module's weight; ``later``: its output is summed with others."""
        return adapters.Exchanges()

    def enter(self, t: Tape, x: Tensor) -> Tensor:
        """The embedding's output as the blocks hold it."""
        return x

    def leave(self, t: Tape, x: Tensor) -> Tensor:
        """The last block's output as the final norm wants it."""
        return x

    #: Ranks that have rows of the embedding and of the head each.
    vocabulary_shards = 1

    def looked_up(self, t: Tape, x: Tensor) -> Tensor:
        """What a rank's rows of the embedding give, of all tokens."""
        return x

    def logits(self, t: Tape, x: Tensor, norm: Norm, head: Tensor) -> Tensor:
        """The last block's output through the last norm and the head."""
        return F.linear(t, norm.forward(t, self.leave(t, x)), head)
