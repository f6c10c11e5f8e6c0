"""Megatron's layers as symbolic modules: transformer layer, embedding, head with loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from prestep.workloads.exchanges.tensor import gather, reduce
from prestep.workloads.job.megatron import GraphedModule, RecomputedModule
from prestep.workloads.megatron.attention import Attention
from prestep.workloads.megatron.compressed_attention import CompressedAttention
from prestep.workloads.megatron.cross_entropy import cross_entropy
from prestep.workloads.megatron.elementwise import (
    bias_dropout_add,
    fused,
    pass_over,
    rms_norm,
    unsaved,
)
from prestep.workloads.megatron.hyper_connection import (
    Contraction,
    HyperConnection,
    expanded,
)
from prestep.workloads.megatron.linear import column_linear
from prestep.workloads.megatron.mla import LatentAttention
from prestep.workloads.megatron.moe import Experts, FeedForward
from prestep.workloads.megatron.scan import Delta, Kimi, Mamba
from prestep.workloads.megatron.shard import Shard, kept, unquantized
from prestep.workloads.models import hybrid
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.activation_checkpoint import again, discarded
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor


class Further(Module):
    """Multi-token prediction: the state beside the next token's embedding, both normed, projected to one state; a
    layer; its own norm (megatron/core/transformer/multi_token_prediction.py). The embedding's look-up is left out."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.s = s
        norms = (self.child(Norm(t, m)) for _ in range(3))
        self.state_norm, self.word_norm, self.last_norm = norms
        self.m, columns = m, m.hidden // s.group.size
        if m.streams == 1:
            self.joined = self.add(t, columns, 2 * m.hidden, name="eh_proj")
        else:
            self.of_word = self.add(t, columns, m.hidden, name="e_proj")
            self.of_state = self.add(t, columns, m.hidden, name="h_proj")
            # The head's pass contracts and norms, for all predictions alike.
            self.child(Contraction(t, m))
        ratio = m.ratio_of(m.layers)
        self.layer = self.child(Layer(t, m, s, bool(m.experts), ratio=ratio))

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        if self.m.streams > 1:
            return self.layer.forward(t, self._into_streams(t, x))
        state = self.state_norm.forward(t, x)
        word = self.word_norm.forward(t, unsaved(x))
        both = _beside(t, state, word)
        y = self._projected(t, both, x.shape)
        return self.last_norm.forward(t, self.layer.forward(t, y))

    def _into_streams(self, t: Tape, x: Tensor) -> Tensor:
        """The next word's embedding and every stream, each normed and projected for itself, and the former added."""
        hidden, streams = self.m.hidden, self.m.streams
        shape = (*x.shape[:-1], streams, hidden)
        state = self.state_norm.forward(t, x.view(*shape))
        embedded = Tensor(None, (*x.shape[:-1], hidden), x.itemsize)
        word = self.word_norm.forward(t, embedded)
        one = column_linear(t, word, self.of_word, self.s)
        each = column_linear(t, state, self.of_state, self.s)
        moved = 2 * x.size + one.size
        # Backward the word's gradient is a sum over streams; the streams' is handed on.
        back = x.size + one.size
        both = fused(t, [unsaved(one), unsaved(each)], shape, moved, back)
        return both.view(*x.shape)

    def _projected(self, t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """One state of both, of the given shape."""
        s = self.s
        y = column_linear(t, x, self.joined, s)
        if s.group.size > 1:
            # Its columns are joined, and the sequence split again.
            gather(t, y, s.group)
        return t.apply(t.empty(shape), [y], lambda g: [t.empty(shape)])


def _beside(t: Tape, state: Tensor, word: Tensor) -> Tensor:
    """Two states of a token beside each other."""
    shape = (*state.shape[:-1], 2 * state.shape[-1])
    moved = 4 * state.size
    return fused(t, [unsaved(state), unsaved(word)], shape, moved, moved)


Attended = LatentAttention | CompressedAttention | Attention
Part = Mamba | Delta | Attended | FeedForward | Experts


class HybridLayer(Module):
    """A layer with one part, named by its letter."""

    def __init__(
        self, t: Tape, m: ModelSpec, s: Shard, letter: str, window: int
    ) -> None:
        super().__init__()
        self.s, self.letter = s, letter
        self.norm = self.child(Norm(t, m))
        self.part = self.child(_BUILD[letter](t, m, s, window))

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        o = self.s.options
        t.cpu("module", 2)
        with t.capture(SCOPES[self.letter] in o.cuda_graph_scope):
            y = self._normed(t, x)
            if not isinstance(self.part, Experts):
                y = self._run(t, y)
        if isinstance(self.part, Experts):
            y = self._run(t, y)
        return bias_dropout_add(t, y, _bias(self.part), x, o)

    def _normed(self, t: Tape, x: Tensor) -> Tensor:
        apart = "layernorm" in self.s.options.recompute_modules
        return discarded(t, lambda given: self.norm.forward(t, given), x, apart)

    def _run(self, t: Tape, x: Tensor) -> Tensor:
        part = self.part
        name = {hybrid.FEED_FORWARD: "mlp", hybrid.EXPERTS: "moe"}.get(self.letter)
        with t.within(name or type(part).__name__.lower()):
            if name in self.s.options.recompute_modules:
                return again(t, lambda given: part.forward(t, given), x)
            return part.forward(t, x)


def _bias(part: Part) -> Tensor | None:
    """That of its last projection."""
    if isinstance(part, FeedForward | Experts):
        return part.fc2_bias
    return part.proj_bias


def _experts(t: Tape, m: ModelSpec, s: Shard, _: int) -> Part:
    if s.spread is None:
        raise RuntimeError("a layer of experts that nobody spread")
    return Experts(t, m, s, s.spread)


_BUILD: dict[str, Callable[[Tape, ModelSpec, Shard, int], Part]] = {
    hybrid.MAMBA: lambda t, m, s, _: Mamba(t, m, s),
    hybrid.DELTA: lambda t, m, s, _: Delta(t, m, s),
    hybrid.KIMI: lambda t, m, s, _: Kimi(t, m, s),
    hybrid.ATTENTION: lambda t, m, s, window: _attention(
        t, m, kept(s, "attn"), window, 0
    ),
    hybrid.FEED_FORWARD: lambda t, m, s, _: FeedForward(t, m, s),
    hybrid.EXPERTS: _experts,
}
#: What a layer is called where parts are captured. Megatron captures linear attention as attention.
SCOPES: dict[str, GraphedModule] = {
    hybrid.MAMBA: "mamba",
    hybrid.DELTA: "attn",
    hybrid.KIMI: "attn",
    hybrid.ATTENTION: "attn",
    hybrid.FEED_FORWARD: "mlp",
    hybrid.EXPERTS: "moe_router",
}


class Norm(Module):
    def __init__(self, t: Tape, m: ModelSpec, eager: bool = False) -> None:
        super().__init__()
        self.kind = m.norm
        self.eager = eager and m.norm == "rms" and not m.norm_bias
        for name in ("weight", "bias")[: 2 if m.norm_bias else 1]:
            self.add(t, m.hidden, name=name)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        if self.eager:
            return rms_norm(t, x, self.parameters[0])
        return F.norm(t, self.kind, x, self.parameters)


class Layer(Module):
    """A transformer layer: attention and feed-forward, each behind a norm and added to the residual stream.

    Around either the streams are mixed where there are several.
    """

    def __init__(
        self,
        t: Tape,
        m: ModelSpec,
        s: Shard,
        experts: bool = False,
        window: int = 0,
        ratio: int = 0,
    ) -> None:
        super().__init__()
        self.s = s
        eager = s.eager("norm")
        attention = _attention(t, m, kept(s, "attn"), window, ratio)
        spread = s.spread if experts else None
        self.norm1 = self.child(Norm(t, m, eager))
        self.attention = self.child(attention)
        self.norm2 = self.child(Norm(t, m, eager))
        self.ffn = self.child(
            FeedForward(t, m, s) if spread is None else Experts(t, m, s, spread)
        )
        parts = 2 if m.streams > 1 else 0
        self.connections = [self.child(HyperConnection(t, m, s)) for _ in range(parts)]

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        o = self.s.options
        t.cpu("module", 4)
        with t.capture("attn" in o.cuda_graph_scope):
            y, join = self._enter(t, x, 0)
            with t.within("attention"):
                y = self.attention.forward(t, self._norm(t, self.norm1, y))
            x = join(y, self.attention.proj_bias)
        routes = isinstance(self.ffn, Experts)
        with self._captured(t, "moe_router" if routes else "mlp"):
            y, join = self._enter(t, x, 1)
            y = self._norm(t, self.norm2, y)
            if not routes:
                y = self._feed_forward(t, y, "mlp")
        if routes:
            y = self._feed_forward(t, y, "moe")
        return join(y, self.ffn.fc2_bias)

    def _enter(self, t: Tape, x: Tensor, part: int) -> tuple[Tensor, Join]:
        """A part's input, and how its output and bias are added to the residual stream."""
        if not self.connections:
            options = self.s.options
            return x, lambda y, bias: bias_dropout_add(t, y, bias, x, options)
        connection = self.connections[part]
        y, streams, mixing = connection.into(t, x)
        # Models with several streams have no biases there.
        return y, lambda y, _: connection.out(t, y, streams, mixing)

    def _captured(self, t: Tape, part: GraphedModule) -> AbstractContextManager[None]:
        """A part behind attention; one graph holds what is captured of a layer."""
        scope = self.s.options.cuda_graph_scope
        return t.capture(part in scope, "attn" not in scope)

    def _norm(self, t: Tape, norm: Norm, x: Tensor) -> Tensor:
        return discarded(
            t,
            lambda given: norm.forward(t, given),
            x,
            "layernorm" in self.s.options.recompute_modules,
        )

    def _feed_forward(self, t: Tape, x: Tensor, module: RecomputedModule) -> Tensor:
        with t.within(module):
            if module in self.s.options.recompute_modules:
                return again(t, lambda given: self.ffn.forward(t, given), x)
            return self.ffn.forward(t, x)


# Adds the output of a part and its bias to the residual stream.
Join = Callable[[Tensor, "Tensor | None"], Tensor]


def _attention(t: Tape, m: ModelSpec, s: Shard, window: int, ratio: int) -> Attended:
    """Of a layer, by its model's kind."""
    if m.compressed:
        return CompressedAttention(t, m, s, ratio)
    return LatentAttention(t, m, s) if m.latent else Attention(t, m, s, window)


def padded_vocab(vocab: int, shards: int, multiple: int) -> int:
    """Megatron pads the vocabulary so that every rank's part is a multiple, by default of 128 (training/tokenizer)."""
    unit = multiple * shards
    return -(-vocab // unit) * unit


def local_vocab(m: ModelSpec, s: Shard) -> int:
    """Words of one tensor-parallel rank."""
    shards = s.group.size
    return padded_vocab(m.vocab, shards, s.options.vocab_multiple) // shards


class Embedding(Module):
    """Rows of the vocabulary spread over the group: looked up where they lie, summed over ranks."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, s
        self.vocab = local_vocab(m, s)
        self.token = self.add(t, self.vocab, m.hidden, name="embedding")
        learned = m.positions == "learned"
        self.position = self.add_if(
            t, learned, m.max_positions, m.hidden, name="position"
        )
        self.norm = self.child(Norm(t, m)) if m.embedding_norm else None

    def forward(self, t: Tape) -> Tensor:
        s, shape = self.s, (self.s.tokens, self.s.batch)
        x = F.embedding(t, shape, self.token)
        if s.group.size > 1:
            # Rows of other ranks' words are zeroed.
            pass_over(t, x.elements, 2 * x.size)
            reduce(t, x, s.group, s.sequence)
        if self.position is not None:
            x = aten.add(t, x, F.embedding(t, shape, self.position))
        if self.norm is not None:
            x = self.norm.forward(t, x)
        if s.options.hidden_dropout:
            moved = 2.5 * x.size
            x = fused(t, [unsaved(x)], x.shape, moved, moved, x.elements)
        x = self._part(t, x) if s.sequence else x
        return expanded(t, x, self.m.streams)

    def _part(self, t: Tape, x: Tensor) -> Tensor:
        """This rank's part of the sequence."""
        s, hidden = self.s, self.m.hidden
        part = t.empty((s.rows, s.batch, hidden))
        lies = x.size > 0

        def backward(g: Tensor) -> list[Tensor | None]:
            return [t.empty((s.tokens, s.batch, hidden)) if lies else None]

        return t.apply(part, [x], backward)


class Head(Module):
    """One stream of all, final norm, logits of this rank's words, and the cross entropy over all ranks' words.

    Logits are a product in 16 bits whatever the layers' format, unless fp8_output_proj says otherwise, and without user
    buffers: the head is Megatron's own projection, outside the layers' fp8 context (GPTModel.output_layer).
    """

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        plain = s if s.options.fp8_output_proj else unquantized(s)
        numbers = replace(plain.numbers, overlap=False)
        self.m, self.s = m, replace(plain, numbers=numbers)
        self.contraction = self.child(Contraction(t, m))
        self.norm = self.child(Norm(t, m, s.eager("norm")))
        self.vocab = local_vocab(m, s)
        self.weight = self.add(t, self.vocab, m.hidden, name="head")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s = self.s
        normed = self.norm.forward(t, self.contraction.forward(t, x))
        logits = column_linear(t, normed, self.weight, s)
        return cross_entropy(t, logits, s)
