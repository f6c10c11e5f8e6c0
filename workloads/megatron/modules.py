"""Megatron's layers as symbolic modules: transformer layer, embedding, head with loss."""

from __future__ import annotations

from sim.graph.kernel import Kernel
from workloads.megatron import functional as M
from workloads.megatron.attention import Attention
from workloads.megatron.feed_forward import FeedForward
from workloads.megatron.mla import LatentAttention
from workloads.megatron.moe import Experts
from workloads.megatron.shard import Shard
from workloads.models.model import ModelSpec
from workloads.torch import functional as F
from workloads.torch.modules import Module
from workloads.torch.tape import Tape, Tensor


class Norm(Module):
    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        self.kind = m.norm
        for name in ("weight", "bias")[: 2 if m.norm_bias else 1]:
            self.add(t, m.hidden, name=name)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        return F.norm(t, self.kind, x, self.parameters)


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
            return M.again(t, lambda given: self.ffn.forward(t, given), x)
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
        s, shape = self.s, (self.s.tokens, self.s.batch)
        x = F.embedding(t, shape, self.token)
        if s.group.size > 1:
            # Rows of other ranks' words are zeroed.
            t.launch(Kernel("fused", (x.elements,), bytes=2 * x.size))
            M.reduce(t, x, s.group, s.sequence)
        if self.position is not None:
            x = F.add(t, x, F.embedding(t, shape, self.position))
        if self.norm is not None:
            x = self.norm.forward(t, x)
        if s.options.hidden_dropout:
            moved = 2.5 * x.size
            x = M.fused(t, [M.unsaved(x)], x.shape, moved, moved, x.elements)
        return self._part(t, x) if s.sequence else x

    def _part(self, t: Tape, x: Tensor) -> Tensor:
        """This rank's part of the sequence."""
        s, hidden = self.s, self.m.hidden
        part = t.empty((s.rows, s.batch, hidden))
        lies = x.size > 0

        def backward(g: Tensor) -> list[Tensor | None]:
            return [t.empty((s.tokens, s.batch, hidden)) if lies else None]

        return t.apply(part, [x], backward)


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
FUSED_LOSS_STEPS, FUSED_LOSS_BACKWARD = (6.0, 8.0, 8.0), (10.0,)
# After which of the steps ranks sum up, without fusion and with it.
REDUCED = {False: (1, 3, 4), True: (1, 2)}


def cross_entropy(t: Tape, logits: Tensor, s: Shard) -> Tensor:
    """Vocabulary-parallel cross entropy in fp32: three small all-reduces; saves the probabilities."""
    n, fused = logits.elements, s.options.cross_entropy_fusion
    t.cpu("loss", 3)
    for i, moved in enumerate(FUSED_LOSS_STEPS if fused else LOSS_STEPS):
        t.launch(Kernel("fused", (n,), bytes=moved * n))
        if s.group.size > 1 and i in REDUCED[fused]:
            both = fused and i == 2  # two values a token in one all-reduce
            M.begin(
                t, "all_reduce", s.tokens * s.batch * (8.0 if both else 4.0), s.group
            )
            t.wait(t.record(M.STREAM))
    probabilities = t.empty(logits.shape, 4)
    shape, itemsize = logits.shape, logits.itemsize

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, probabilities)
        t.cpu("loss_backward")
        for moved in FUSED_LOSS_BACKWARD if fused else LOSS_BACKWARD:
            t.launch(Kernel("fused", (n,), bytes=moved * n))
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty((1,), 4), [logits], backward)
