"""Blocks of decoder-only transformers as symbolic PyTorch modules (Llama and GPT families).

The module structure is that of a plain PyTorch model: separate q, k and v projections, norms before
attention and before the feed-forward network, rotary embedding as elementwise operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

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
)
from prestep.workloads.torch.modules import FeedForward, Linear, Module
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.torch import adapter as adapters
    from prestep.workloads.torch import (
        attention_kernels,
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
        # One key for all heads in one projection is Falcon's, whose call no fused kernel takes.
        self.alone = t.written_out and joined and self.rotary and m.kv_heads == 1
        if self.joined is None:
            self._apart(t, m)
        self.wo = self.project(t, m.hidden, self.heads * m.head_dim, "wo", m.out_bias)
        self.norm_kind = "rms" if m.norm == "layer" else m.norm
        self.norms: list[Tensor] = []
        counts = (self.heads, self.kv) if m.qk_norm else ()
        for name, count in zip(("q_norm", "k_norm"), counts, strict=False):
            width = count * m.head_dim if m.qk_norm_wide else m.head_dim
            self.norms.append(self.add(t, width, name=name))
        self.normed_whole = m.qk_norm_wide
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
        if self.norms and not self.normed_whole:  # by head, before the rotation
            of_q, of_k = self.norms
            q, k = self._normed(t, q, of_q), self._normed(t, k, of_k)
        if self.rotary and t.by_liger("rope"):
            q = liger.rope(t, q, k)
        elif self.rotary:
            q, k = rope(t, q), rope(t, k)
        if self.alone:
            o = attention_kernels.in_operations(t, q, k, v, causal=True)
        else:
            o = attention(t, q, k, v, self.window, sinks=self.sinks)
        o = merge_heads(t, o)
        for each in gate:
            o = aten.mul(t, o, aten.activation(t, "sigmoid", each))
        del gate
        return row(t, o, self.wo, self.biases.get(self.wo))

    def _normed(self, t: Tape, x: Tensor, weight: Tensor) -> Tensor:
        return t.call([weight], x, lambda x: F.norm(t, self.norm_kind, x, [weight]))

    def _heads(self, t: Tape, x: Tensor, column: Linear) -> list[Tensor]:
        """Queries, keys and values, (batch, heads, seq, head_dim) each; then gates of the output, if it has some."""

        def project(w: Tensor) -> Tensor:
            # With sequence parallelism the result is longer than x.
            return column(t, x, w, self.biases.get(w))

        def whole(y: Tensor, at: int) -> Tensor:
            """Queries (0) or keys (1) of all heads, through their norm where it sees them so."""
            wide = self.normed_whole and at < len(self.norms)
            return self._normed(t, y, self.norms[at]) if wide else y

        counts = (self.heads, self.kv, self.kv)
        widths = [count * self.head_dim for count in counts]
        gates = widths[:1] if self.gated else []
        if self.alone and self.joined is not None:
            return attention_kernels.of_one_key(t, project(self.joined), self.heads)
        if self.joined is not None:
            parts = split_joined(t, project(self.joined), [*widths, *gates])
            own = enumerate(zip(parts, counts, strict=False))
            heads = [by_head(t, whole(p, at), n) for at, (p, n) in own]
            return heads + parts[len(counts) :]
        # Each is cut into heads before the next is made: backward merges them in this order.
        q = project(self.wq)
        gate: list[Tensor] = []
        if gates:
            q, *gate = split_joined(t, q, [*widths[:1], *gates])
        heads = [by_head(t, whole(q, 0), self.heads)]
        del q
        for at, w in enumerate((self.wk, self.wv), 1):
            heads.append(by_head(t, whole(project(w), at), self.kv))
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
        if self.kind != "layer" and t.by_liger("rms_norm"):
            return liger.rms_norm(t, x, self.parameters[0])
        return F.norm(t, self.kind, x, self.parameters, self.least)


class Branch(NamedTuple):
    """A part of a block with the norms before and behind it, of which a model has one or both."""

    before: Norm | None
    part: Part
    behind: Norm | None


class Block(Module):
    """Parts of a transformer block with their norms, added to the residual; ``parallel`` decides how they split.

    It is what FSDP gathers, checkpointing runs again and a compiler sees at once. Of hybrids it is a layer of the
    pattern, which has one part (NemotronHBlock); models whose blocks have two are two such layers a block.
    """

    def __init__(
        self, t: Tape, m: ModelSpec, index: int, parallel: BlockParallel
    ) -> None:
        super().__init__()
        self.index, self.parallel = index, parallel
        self.branches: list[Branch] = []
        for letter in m.letters_of(index):
            shared = m.norms == "shared" and self.branches
            before = self.branches[0].before if shared else None
            if m.norms != "behind" and not shared:
                before = self.child(Norm(t, m))
            part = parallel.part(t, m, letter, index)
            self.parameters += part.parameters
            behind = m.norms in ("behind", "around")
            after = self.child(Norm(t, m)) if behind else None
            self.branches.append(Branch(before, part, after))
        self.parallel_parts = m.parallel_parts

    @property
    def parts(self) -> list[Part]:
        """What is behind the norms."""
        return [branch.part for branch in self.branches]

    @property
    def experts(self) -> moe.MixtureOfExperts | None:
        """Its layer of experts, if it has one."""
        found = (p for p in self.parts if isinstance(p, moe.MixtureOfExperts))
        return next(found, None)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        with t.temporarily(layer=self.index):
            t.cpu("module")
            return t.call([], x, lambda x: self.through(t, x, self.branches))

    def through(self, t: Tape, x: Tensor, branches: Sequence[Branch]) -> Tensor:
        """The residual after some of its branches."""
        if self.parallel_parts:
            return aten.add(t, x, self._beside(t, x, *branches))
        p = self.parallel
        for before, part, behind in branches:
            with t.within(part.label):
                y = part.forward(t, apply_norm(t, before, x), p.column, p.row)
                y = apply_norm(t, behind, y)
            x = aten.add(t, x, y)
            del y
        return x

    def _beside(self, t: Tape, x: Tensor, one: Branch, other: Branch) -> Tensor:
        """The sum of two parts that both see the residual, behind one norm or two (Falcon, GPT-NeoX)."""
        p, entered = self.parallel, apply_norm(t, one.before, x)
        with t.within(one.part.label):
            y = one.part.forward(t, entered, p.column, p.row)
        if other.before is not one.before:
            entered = apply_norm(t, other.before, x)
        with t.within(other.part.label):
            z = other.part.forward(t, entered, p.column, p.row)
        return aten.add(t, z, y)


def apply_norm(t: Tape, norm: Norm | None, x: Tensor) -> Tensor:
    """``x`` through a norm that not every layer has."""
    if norm is None:
        return x
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
        if letter in hybrid.MIXERS:
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

    def logits(
        self, t: Tape, x: Tensor, norm: Norm, head: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """The last block's output through the last norm and the head."""
        return F.linear(t, norm.forward(t, self.leave(t, x)), head, bias)
