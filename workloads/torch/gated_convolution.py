"""Short convolutions with gates in place of attention (LFM2): operators of transformers' Lfm2ShortConv.

A projection makes two gates and a value of each token; the gated value is convolved along the sequence, a filter of few
tokens for each channel, gated again and projected back.
"""

from __future__ import annotations

from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operators import convolution
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.aten_products import rows
from prestep.workloads.torch.attention import taken_apart
from prestep.workloads.torch.modules import Linear, Module
from prestep.workloads.torch.tape import Tape, Tensor


class ConvolutionWeights(Module):
    """Parameters for so many channels."""

    label = "convolution"

    def __init__(self, t: Tape, m: ModelSpec, channels: int) -> None:
        super().__init__()
        self.filters = self.add(t, channels, 1, m.conv_width, name="conv1d")
        self.projection = self.add(t, 3 * channels, m.hidden, name="in_proj")
        self.output = self.add(t, m.hidden, channels, name="out_proj")


class GatedConvolution(ConvolutionWeights):
    """The layer as PyTorch's operators."""

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__(t, m, m.hidden)

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        t.cpu("module")
        first, second, value = self._gates(t, F.linear(t, x, self.projection))
        y = self._convolved(t, aten.mul(t, first, value))
        del first, value
        y = aten.mul(t, second, y)
        return F.linear(t, aten.transpose(t, y, 1, 2), self.output)

    def _gates(self, t: Tape, x: Tensor) -> list[Tensor]:
        """Both gates and the value, (batch, channels, tokens) each: views, whose gradients two copies join."""
        (batch, tokens, width), each = x.shape, x.shape[-1] // 3
        strides = tokens * width, 1, width
        parts = [aten.view(x, (batch, each, tokens), strides) for _ in range(3)]
        for at, part in enumerate(parts):
            part.offset += at * each

        def join(gradients: list[Tensor]) -> Tensor:
            whole = aten.joined(t, gradients, (batch, width, tokens), 1)
            turned = aten.view(whole, (batch, tokens, width), (strides[0], 1, tokens))
            y = rows(t, turned)  # of one sample a view
            steps = tokens * width, *aten.strides_of(y)
            return aten.view(y, (batch, tokens, width), steps)

        t.cpu("view", 2)
        return taken_apart(t, x, parts, join)

    def _convolved(self, t: Tape, x: Tensor) -> Tensor:
        """Each channel with the tokens before it: padded on both sides, and what looks ahead cut off."""
        w, (batch, channels, tokens) = self.filters, x.shape
        before = w.shape[-1] - 1
        steps = (1,), (before,), (1,), False, (0,), channels
        t.cpu("conv")
        t.saves()
        y = t.empty((batch, channels, tokens + before), x.itemsize)
        rule, name = convolution.forward, "convolution.default"
        aten.call(t, rule, name, (x, w, None, *steps), y)

        def backward(g: Tensor) -> list[Tensor | None]:
            made = [t.empty(each.shape, each.itemsize) for each in (x, w)]
            mask = True, True, False
            arguments = g, x, w, (0,), *steps, mask
            name = "convolution_backward.default"
            aten.call(t, convolution.backward, name, arguments, *made)
            return [*made]

        return aten.part(t, t.apply(y, [x, w], backward), 0, tokens)
