"""Vision transformers as timm builds them: patches by a convolution, a class token, attention over all of a picture.

References: Dosovitskiy et al. 2020 (https://arxiv.org/abs/2010.11929); timm/models/vision_transformer.py.
"""

from __future__ import annotations

from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operators import convolution, copies
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.block import Norm
from prestep.workloads.torch.indexing import select
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.transformer import Transformer

CHANNELS = 3
#: The same around the blocks: PatchEmbed and its checks, drops, norms that are none, functions of the model and head.
AROUND = 17
Grads = list[Tensor | None]


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
        t.cpu("module", AROUND)
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
        aten.call(t, rule, "cat.default", arguments, whole)

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
            y = select(t, norm.forward(t, h), 0, 1)
            return F.linear(t, y, head, self.biases[head])


def patches(t: Tape, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """``conv(x).flatten(2).transpose(1, 2)`` of a convolution as wide as its stride: (b, patches, hidden)."""
    (batch, _, side, _), (hidden, _, patch, _) = x.shape, w.shape
    across = side // patch
    steps = (patch, patch), (0, 0), (1, 1), False, (0, 0), 1
    t.cpu("conv")
    t.saves(2)
    y = t.empty((batch, hidden, across, across), x.itemsize)
    rule, name = convolution.forward, "convolution.default"
    aten.call(t, rule, name, (x, w, bias, *steps), y)
    t.cpu("view", 2)

    def backward(g: Tensor) -> Grads:
        t.cpu("view_backward", 2)
        row, token, one = aten.strides_of(g)
        turned = aten.view(g, y_shape, (row, one, across * token, token))
        made = [t.empty(w.shape, w.itemsize), t.empty((hidden,), w.itemsize)]
        arguments = (turned, x, w, (hidden,), *steps, (False, True, True))
        rule, name = convolution.backward, "convolution_backward.default"
        aten.call(t, rule, name, arguments, made[0], made[1])
        return [*made]

    y_shape, count = y.shape, across**2
    rows = aten.view(y, (batch, count, hidden), (hidden * count, 1, count))
    return t.apply(rows, [w, bias], backward)
