"""Attention of vision transformers as timm writes it: one projection, taken apart by ``unbind``."""

from __future__ import annotations

from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operators import copies
from prestep.workloads.operators.tensors import contiguous
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.attention import (
    attention,
    merge_heads,
    taken_apart,
)
from prestep.workloads.torch.modules import Linear, Module
from prestep.workloads.torch.tape import Tape, Tensor

#: Modules of a block that pass their input on (drops, scales, norms that are none), and functions around attention.
PASSED = 14


class VisionAttention(Module):
    """Attention over all tokens, whose queries, keys and values come from one projection."""

    label = "attention"

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        self.heads, self.head_dim = m.heads, m.head_dim
        self.qkv = self.project(t, 3 * m.heads * m.head_dim, m.hidden, "qkv", m.bias)
        self.wo = self.project(t, m.hidden, m.heads * m.head_dim, "wo", m.out_bias)

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        t.cpu("module", 1 + PASSED)
        return t.call([], x, lambda x: self._attended(t, x, column, row))

    def _attended(self, t: Tape, x: Tensor, column: Linear, row: Linear) -> Tensor:
        joined = column(t, x, self.qkv, self.biases.get(self.qkv))
        q, k, v = unbound(t, joined, self.heads, self.head_dim)
        del joined
        o = merge_heads(t, attention(t, q, k, v, causal=False))
        del q, k, v
        return row(t, o, self.wo, self.biases.get(self.wo))


def unbound(t: Tape, x: Tensor, heads: int, width: int) -> list[Tensor]:
    """``x.reshape(b, n, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)``: views; backward stacks their gradients."""
    batch, tokens, whole = own = x.shape
    shape, strides = (batch, heads, tokens, width), (tokens * whole, width, whole, 1)
    t.cpu("view", 3)
    parts = [aten.view(x, shape, strides) for _ in range(3)]
    for at, each in enumerate(parts):
        each.offset += at * heads * width

    def join(gradients: list[Tensor]) -> Tensor:
        whole = t.empty((3, *shape), gradients[0].itemsize)
        aten.call(t, copies.join, "stack.default", (gradients,), whole)
        gradients.clear()
        t.cpu("view_backward", 2)
        steps, turned = contiguous(whole.shape), (batch, tokens, 3, heads, width)
        strides = steps[1], steps[3], steps[0], steps[2], 1
        y = t.empty(turned, whole.itemsize)
        arguments, rule = (aten.view(whole, turned, strides),), copies.RULES["clone"]
        order = {"memory_format": "torch.contiguous_format"}
        aten.call(t, rule, "clone.default", arguments, y, **order)
        return aten.view(y, own, contiguous(own))

    return taken_apart(t, x, parts, join)
