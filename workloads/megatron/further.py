"""Multi-token prediction: layers behind the last one that predict later tokens."""

from __future__ import annotations

from prestep.workloads.exchanges.tensor import gather
from prestep.workloads.megatron.elementwise import fused, unsaved
from prestep.workloads.megatron.hyper_connection import Contraction
from prestep.workloads.megatron.linear import column_linear
from prestep.workloads.megatron.modules import Layer, Norm
from prestep.workloads.megatron.shard import Shard
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor


class Further(Module):
    """Multi-token prediction: the state beside the next token's embedding, both normed, projected to one state; a
    layer; its own norm (megatron/core/transformer/multi_token_prediction.py). The embedding's look-up is left out."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.s = s
        self.state_norm, self.word_norm, self.last_norm = (Norm(t, m) for _ in range(3))
        for norm in (self.state_norm, self.word_norm, self.last_norm):
            self.parameters += norm.parameters
        self.m, columns = m, m.hidden // s.group.size
        if m.streams == 1:
            self.joined = self.add(t, columns, 2 * m.hidden, name="eh_proj")
        else:
            self.of_word = self.add(t, columns, m.hidden, name="e_proj")
            self.of_state = self.add(t, columns, m.hidden, name="h_proj")
            # The head's pass contracts and norms, for all predictions alike.
            self.parameters += Contraction(t, m).parameters
        ratio = m.ratio_of(m.layers)
        self.layer = Layer(t, m, s, bool(m.experts), ratio=ratio)
        self.parameters += self.layer.parameters

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
