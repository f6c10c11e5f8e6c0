"""The feed-forward part of Megatron's layers."""

from __future__ import annotations

from prestep.workloads.megatron.adapter import adapted_column, adapted_row, pair_of
from prestep.workloads.megatron.eager import gated_activation
from prestep.workloads.megatron.elementwise import activate
from prestep.workloads.megatron.shard import Shard, fused_ops
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor


class FeedForward(Module):
    """One projection up (for gated ones both halves at once), the activation, and one down."""

    def __init__(self, t: Tape, m: ModelSpec, s: Shard) -> None:
        super().__init__()
        self.m, self.s = m, fused_ops(s)
        inner = m.ffn // s.group.size
        up = inner * (2 if m.gated else 1)
        self.fc1 = self.add(t, up, m.hidden, name="linear_fc1")
        self.fc1_bias = self.add_if(t, m.bias, up, name="linear_fc1.bias")
        self.fc2 = self.add(t, m.hidden, inner, name="linear_fc2")
        self.fc1_pair = pair_of(self, t, "fc1", self.fc1, s, row=False)
        self.fc2_pair = pair_of(self, t, "fc2", self.fc2, s, row=True)
        self.fc2_bias = self.add_if(t, m.bias, m.hidden, name="linear_fc2.bias")

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        s = self.s
        y = adapted_column(t, x, self.fc1, self.fc1_pair, s)
        y = self._activate(t, y)
        return adapted_row(t, y, self.fc2, self.fc2_pair, s, "fc2")

    def _activate(self, t: Tape, y: Tensor) -> Tensor:
        """The activation, in one kernel unless it is a product of eager operators."""
        s, gated = self.s, self.m.gated
        if gated and self.fc1_bias is None and s.eager("activation"):
            return gated_activation(t, y)
        written = s.numbers.written
        return activate(t, y, self.fc1_bias, gated, s.options, written)
