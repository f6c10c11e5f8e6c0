"""Megatron's layers as symbolic modules: transformer layer, embedding, head with loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from prestep.sim.extras import lazily
from prestep.workloads.exchanges.tensor import gather, reduce
from prestep.workloads.job.megatron import GraphedModule
from prestep.workloads.megatron.absorbed_attention import AbsorbedAttention
from prestep.workloads.megatron.attention import Attention
from prestep.workloads.megatron.compressed_attention import CompressedAttention
from prestep.workloads.megatron.cross_entropy import cross_entropy
from prestep.workloads.megatron.elementwise import (
    bias_add,
    bias_dropout_add,
    copied_back,
    copied_in,
    fused,
    pass_over,
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
from prestep.workloads.megatron.scan import Delta, GatedConvolution, Kimi, Mamba
from prestep.workloads.megatron.shard import Shard, kept, unquantized
from prestep.workloads.models import hybrid
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.activation_checkpoint import again, discarded
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():  # norms that run operator by operator
    from prestep.workloads.torch import written_out


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
        ratio, letters = m.ratio_of(m.layers), m.letters_of(m.layers)
        self.layer = self.child(Layer(t, m, s, letters, 0, ratio))

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


class Norm(Module):
    """A norm: a module by itself, or (``joined``) the first part of the projection behind it (LayerNormLinear)."""

    def __init__(
        self, t: Tape, m: ModelSpec, eager: bool = False, joined: bool = False
    ) -> None:
        super().__init__()
        self.kind, self.joined = m.norm, joined
        self.eager = eager and m.norm == "rms" and not m.norm_bias
        for name in ("weight", "bias")[: 2 if m.norm_bias else 1]:
            self.add(t, m.hidden, name=name)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        t.cpu("norm_module", not self.joined)
        if self.eager:
            return written_out.rms_norm(t, x, self.parameters[0])
        return F.norm(t, self.kind, x, self.parameters)


Part = (
    Mamba
    | Delta
    | GatedConvolution
    | LatentAttention
    | CompressedAttention
    | Attention
    | FeedForward
    | Experts
)
MIXERS: dict[str, Callable[[Tape, ModelSpec, Shard], Part]] = {
    hybrid.MAMBA: Mamba,
    hybrid.DELTA: Delta,
    hybrid.KIMI: Kimi,
    hybrid.CONVOLUTION: GatedConvolution,
}
#: Adds the output of a part and its bias to the residual stream.
Join = Callable[[Tensor, "Tensor | None"], Tensor]
#: What a part is called where parts are captured; Megatron captures linear attention as attention.
SCOPES: dict[str, GraphedModule] = {
    **dict.fromkeys((*hybrid.LINEAR, hybrid.ATTENTION), "attn"),
    **dict.fromkeys((hybrid.MAMBA, hybrid.CONVOLUTION), "mamba"),
    hybrid.FEED_FORWARD: "mlp",
    hybrid.EXPERTS: "moe",
}
#: And where their memory is told apart, or they run again.
NAMES = {
    hybrid.MAMBA: "mamba",
    hybrid.DELTA: "delta",
    hybrid.KIMI: "kimi",
    hybrid.CONVOLUTION: "convolution",
    hybrid.ATTENTION: "attention",
    hybrid.FEED_FORWARD: "mlp",
    hybrid.EXPERTS: "moe",
}


class Layer(Module):
    """Parts of a layer with their norms, added to the residual stream: attention and feed-forward, or a hybrid's.

    Around each the streams are mixed where there are several.

    Parameters
    ----------
    letters : str
        The parts, as the patterns of hybrids name them.
    window, ratio : int
        Tokens that attention looks back (0: all), and those that a compressed key stands for.
    """

    def __init__(
        self, t: Tape, m: ModelSpec, s: Shard, letters: str, window: int, ratio: int
    ) -> None:
        super().__init__()
        self.s, self.letters = s, letters
        self.norms: list[Norm | None] = []
        self.behind: list[Norm | None] = []
        self.parallel_parts, self.shared = m.parallel_parts, m.norms == "shared"
        self.parts: list[Part] = []
        for letter in letters:
            apart = letter == hybrid.EXPERTS or (
                letter == hybrid.ATTENTION and m.latent
            )
            before = self.norms[0] if m.norms == "shared" and self.parts else None
            if m.norms != "behind" and before is None:
                before = self.child(Norm(t, m, s.eager("norm"), not apart))
            self.norms.append(before)
            self.parts.append(self.child(_part(t, m, s, letter, window, ratio)))
            behind = m.norms in ("behind", "around")
            after = self.child(Norm(t, m, s.eager("norm"))) if behind else None
            self.behind.append(after)
        mixed = letters if m.streams > 1 else ""
        self.connections = [self.child(HyperConnection(t, m, s)) for _ in mixed]

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        source = x if self.parallel_parts else None
        given: Tensor | None = None  # what a norm made that parts share
        graphed = self._graphed
        # One graph holds what is captured of a layer.
        places = [at for at, (captures, _) in enumerate(graphed) if captures]
        for at, (captures, apart) in enumerate(graphed):
            begins, ends = at in places[:1], at in places[-1:]
            # The residual stream leaves the graph of a router beside rows for experts.
            x = copied_back(t, copied_in(t, x, begins), ends and apart)
            with t.capture(captures, begins):
                y, join = self._enter(t, x, at)
                if given is None:
                    y = self._normed(t, self.norms[at], y if source is None else source)
                else:
                    y = given
                if self.shared:
                    given = y
            with t.capture(captures and not apart, False):
                t.cpu("module", 2)
                x = join(self._run(t, at, y), self.parts[at].proj_bias)
            x = copied_back(t, x, ends and not apart)
        return x

    @property
    def _graphed(self) -> list[tuple[bool, bool]]:
        """Of each part whether it is captured, and whether that is the router alone."""
        scope = self.s.options.cuda_graph_scope
        apart = [at == hybrid.EXPERTS and "moe" not in scope for at in self.letters]
        return [
            (("moe_router" if router else SCOPES[letter]) in scope, router)
            for letter, router in zip(self.letters, apart, strict=True)
        ]

    def _enter(self, t: Tape, x: Tensor, part: int) -> tuple[Tensor, Join]:
        """A part's input, and how its output and bias are added to the residual stream."""
        if not self.connections:
            options = self.s.options
            return x, lambda y, bias: bias_dropout_add(t, y, bias, x, options)
        connection = self.connections[part]
        y, streams, mixing = connection.into(t, x)
        # Models with several streams have no biases there.
        return y, lambda y, _: connection.out(t, y, streams, mixing)

    def _normed(self, t: Tape, norm: Norm | None, x: Tensor) -> Tensor:
        """``x`` through a norm that not every layer has."""
        if norm is None:
            return x
        apart = "layernorm" in self.s.options.recompute_modules
        return discarded(t, lambda given: norm.forward(t, given), x, apart)

    def _run(self, t: Tape, at: int, x: Tensor) -> Tensor:
        """A part, which may run again in backward, and the norm behind it."""
        part, name = self.parts[at], NAMES[self.letters[at]]
        with t.within(name):
            if name in self.s.options.recompute_modules:
                y = again(t, lambda given: part.forward(t, given), x)
            else:
                y = part.forward(t, x)
            return self._normed(t, self.behind[at], y)


def _part(
    t: Tape, m: ModelSpec, s: Shard, letter: str, window: int, ratio: int
) -> Part:
    """A part by its letter."""
    if letter in MIXERS:
        return MIXERS[letter](t, m, s)
    if letter == hybrid.EXPERTS and s.spread is not None:
        return Experts(t, m, s, s.spread)
    if letter != hybrid.ATTENTION:
        return FeedForward(t, m, s)
    s = kept(s, "attn")
    if m.compressed:
        return CompressedAttention(t, m, s, ratio)
    if m.indexed:
        return AbsorbedAttention(t, m, s, ratio)
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

    def forward(self, t: Tape, _: Tensor) -> Tensor:
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
        self.bias = self.add_if(t, m.head_bias, self.vocab, name="head.bias")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s = self.s
        normed = self.norm.forward(t, self.contraction.forward(t, x))
        logits = column_linear(t, normed, self.weight, s)
        return cross_entropy(t, bias_add(t, logits, self.bias), s)
