"""Multi-token prediction: layers behind the last one that predict later tokens."""

from __future__ import annotations

from workloads.megatron import functional as M
from workloads.megatron.modules import Layer, Norm
from workloads.megatron.shard import Shard
from workloads.models.model import ModelSpec
from workloads.torch.modules import Module
from workloads.torch.tape import Tape, Tensor


class Further(Module):
    """Multi-token prediction: the state beside the next token's embedding, both normed, projected to one state; a
    layer; its own norm (megatron/core/transformer/multi_token_prediction.py). The embedding's look-up is left out."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.s, self.norms = s, [Norm(t, m) for _ in range(3)]
        for norm in self.norms:
            self.parameters += norm.parameters
        self.joined = self.add(
            t, m.hidden // s.group.size, 2 * m.hidden, name="eh_proj"
        )
        self.layer = Layer(t, m, s, bool(m.experts))
        self.parameters += self.layer.parameters

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s, (state, word, last) = self.s, self.norms
        a, b = state.forward(t, x), word.forward(t, M.unsaved(x))
        both = M.fused(
            t,
            [M.unsaved(a), M.unsaved(b)],
            (*x.shape[:-1], 2 * x.shape[-1]),
            4 * x.size,
            4 * x.size,
        )
        y = M.column_linear(t, both, self.joined, s.group, s.sequence, s.numbers)
        if s.group.size > 1:
            M.gather(
                t, y, s.group
            )  # its columns are joined, and the sequence split again
        y = t.apply(
            t.empty(x.shape), [y], lambda g: [t.empty((y.shape[0], *y.shape[1:]))]
        )
        return last.forward(t, self.layer.forward(t, y))
