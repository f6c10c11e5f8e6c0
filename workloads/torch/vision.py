"""Vision transformers as timm builds them: patches by a convolution, a class token, attention over all of a picture.

References: Dosovitskiy et al. 2020 (https://arxiv.org/abs/2010.11929); timm/models/vision_transformer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operators import convolution, copies
from prestep.workloads.operators.tensors import contiguous
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.attention import attention, merge_heads
from prestep.workloads.torch.block import Attention, Norm
from prestep.workloads.torch.modules import Linear, Module
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer

CHANNELS = 3
Grads = list[Tensor | None]


class VisionAttention(Attention):
    """Attention over all tokens, whose queries, keys and values come from one projection."""

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        Module.__init__(self)
        self.heads, self.head_dim, self.sinks = m.heads, m.head_dim, None
        self.qkv = self.project(t, 3 * m.heads * m.head_dim, m.hidden, "qkv", m.bias)
        self.wo = self.project(t, m.hidden, m.heads * m.head_dim, "wo", m.bias)

    def _attended(self, t: Tape, x: Tensor, column: Linear, row: Linear) -> Tensor:
        joined = column(t, x, self.qkv, self.biases.get(self.qkv))
        q, k, v = unbound(t, joined, self.heads, self.head_dim)
        del joined
        o = merge_heads(t, attention(t, q, k, v, causal=False))
        del q, k, v
        return row(t, o, self.wo, self.biases.get(self.wo))


def unbound(t: Tape, x: Tensor, heads: int, width: int) -> list[Tensor]:
    """``x.reshape(b, n, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)``: views; backward stacks their gradients."""
    batch, tokens, whole = x.shape
    unbind = _Unbind(t, x.shape, [None] * 3)
    shape, strides = (batch, heads, tokens, width), (tokens * whole, width, whole, 1)
    t.cpu("view", 5)
    first, *others = (aten.view(x, shape, strides) for _ in range(3))
    for at, each in enumerate(others, 1):
        each.offset += at * heads * width
    main = t.apply(first, [x], unbind.join)
    rest = enumerate(others, 1)
    return [main, *(t.apply(y, [main], partial(unbind.keep, at)) for at, y in rest)]


@dataclass(frozen=True)
class _Unbind:
    """A tensor that was taken apart: gradients of its parts, but for the first, until they are stacked."""

    t: Tape
    shape: tuple[int, ...]
    gradients: list[Tensor | None]

    def keep(self, at: int, g: Tensor) -> Grads:
        """Backward of a further part."""
        self.gradients[at] = g
        return [None]

    def join(self, g: Tensor) -> Grads:
        """Backward of the first part, which runs last."""
        t, (batch, heads, tokens, width) = self.t, g.shape
        parts = [g, *(each for each in self.gradients if each is not None)]
        self.gradients.clear()
        whole = t.empty((len(parts), *g.shape), g.itemsize)
        aten.call(t, copies.join, "stack.default", (parts,), whole, "stack")
        del parts, g
        t.cpu("view_backward", 2)
        steps = contiguous(whole.shape)
        turned = (batch, tokens, whole.shape[0], heads, width)
        strides = steps[1], steps[3], steps[0], steps[2], 1
        y = t.empty(turned, whole.itemsize)
        arguments, rule = (aten.view(whole, turned, strides),), copies.RULES["clone"]
        order = {"memory_format": "torch.contiguous_format"}
        aten.call(t, rule, "clone.default", arguments, y, aten.BACKWARD, **order)
        return [aten.view(y, self.shape, contiguous(self.shape))]


class VisionTransformer(Transformer):
    """A stage of a vision transformer: patches and positions first, the class token's scores last."""

    def _tokens(self, t: Tape, m: ModelSpec) -> Tensor:
        self.cls = self.add(t, 1, 1, m.hidden, name="cls")
        self.places = self.add(t, 1, m.tokens, m.hidden, name="position")
        sizes = m.hidden, CHANNELS, m.patch, m.patch
        weight = self.add(t, *sizes, name="patch")
        self.biases[weight] = self.add(t, m.hidden, name="patch.bias")
        return weight

    def _head(self, t: Tape, m: ModelSpec) -> Tensor:
        return self.project(t, m.classes, m.hidden, "head", True)

    @property
    def embedding_parameters(self) -> list[Tensor]:
        assert self.token is not None
        return [self.cls, self.places, self.token, self.biases[self.token]]

    def _embedded(self, t: Tape, x: Tensor | tuple[int, int]) -> Tensor:
        if isinstance(x, Tensor) or self.token is None:
            return super()._embedded(t, x)
        side = self.spec.image_size
        pictures = Tensor(None, (x[0], CHANNELS, side, side), t.itemsize)
        h = patches(t, pictures, self.token, self.biases[self.token])
        return aten.add(t, self._with_class(t, h), self.places)

    def _with_class(self, t: Tape, x: Tensor) -> Tensor:
        """``torch.cat([cls.expand(b, -1, -1), x], 1)``."""
        batch, tokens, hidden = x.shape
        t.cpu("view")
        own = aten.view(self.cls, (batch, 1, hidden), (0, hidden, 1))
        whole = t.empty((batch, tokens + 1, hidden), x.itemsize)
        arguments, rule = ([own, x], 1), copies.RULES["cat"]
        aten.call(t, rule, "cat.default", arguments, whole, aten.FORWARD)

        def backward(g: Tensor) -> Grads:
            t.cpu("view_backward", 3)
            strides = aten.strides_of(g)
            first = aten.view(g, (batch, 1, hidden), strides)
            rest = aten.view(g, (batch, tokens, hidden), strides)
            rest.offset += hidden
            return [aten.sum_to(t, first, (1, 1, hidden)), rest]

        return t.apply(whole, [self.cls, x], backward)

    def _logits(self, t: Tape, h: Tensor, norm: Norm, head: Tensor) -> Tensor:
        with t.within("head"):
            y = first_token(t, norm.forward(t, h))
            return F.linear(t, y, head, self.biases[head])


def patches(t: Tape, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """``conv(x).flatten(2).transpose(1, 2)`` of a convolution as wide as its stride: (b, patches, hidden)."""
    (batch, _, side, _), (hidden, _, patch, _) = x.shape, w.shape
    across = side // patch
    steps = (patch, patch), (0, 0), (1, 1), False, (0, 0), 1
    t.saves(2)
    y = t.empty((batch, hidden, across, across), x.itemsize)
    rule, name = convolution.forward, "convolution.default"
    aten.call(t, rule, name, (x, w, bias, *steps), y, "conv")
    t.cpu("view", 2)

    def backward(g: Tensor) -> Grads:
        t.cpu("view_backward", 2)
        row, token, one = aten.strides_of(g)
        turned = aten.view(g, y_shape, (row, one, across * token, token))
        made = [t.empty(w.shape, w.itemsize), t.empty((hidden,), w.itemsize)]
        arguments = (turned, x, w, (hidden,), *steps, (False, True, True))
        rule, name = convolution.backward, "convolution_backward.default"
        aten.call(t, rule, name, arguments, made[0], "conv_backward", made[1])
        return [*made]

    y_shape, count = y.shape, across**2
    rows = aten.view(y, (batch, count, hidden), (hidden * count, 1, count))
    return t.apply(rows, [w, bias], backward)


def first_token(t: Tape, x: Tensor) -> Tensor:
    """``x[:, 0]``: backward writes the gradient among zeros."""
    shape, itemsize = x.shape, x.itemsize
    t.cpu("view")

    def backward(g: Tensor) -> Grads:
        arguments, y = (g, shape, 1, 0), t.empty(shape, itemsize)
        name, rule = "select_backward.default", copies.RULES["select_backward"]
        return [aten.call(t, rule, name, arguments, y, "select_backward")]

    y = aten.view(x, (shape[0], shape[2]), (shape[1] * shape[2], 1))
    return t.apply(y, [x], backward)
