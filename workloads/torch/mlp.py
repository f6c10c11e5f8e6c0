"""A multilayer perceptron as symbolic PyTorch: linear layers with biases, an activation between them; its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prestep.workloads.operators.losses import elements
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.modules import Module
from prestep.workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from prestep.workloads.models.model import ModelSpec


class MultilayerPerceptron(Module):
    """Layers of ``m.sizes``: [1024, 1024, 1] is a 1024 to 1024 layer and a 1024 to 1 layer."""

    def __init__(self, t: Tape, m: ModelSpec) -> None:
        super().__init__()
        self.inputs, self.activation = m.sizes[0], m.activation or "relu"
        self.layers: list[tuple[Tensor, Tensor | None]] = []
        for i, (before, after) in enumerate(
            zip(m.sizes[:-1], m.sizes[1:], strict=True)
        ):
            w = self.add(t, after, before, name=f"fc{i + 1}.weight")
            self.layers.append(
                (w, self.add(t, after, name=f"fc{i + 1}.bias") if m.bias else None)
            )

    def forward(self, t: Tape, batch: int) -> Tensor:
        """Outputs (batch, last size) of a batch of samples, which are data and get no gradient."""
        t.cpu("module")
        x = Tensor(None, (batch, self.inputs), t.itemsize)
        for i, (w, bias) in enumerate(self.layers):
            t.cpu("module")
            if i > 0:
                x = aten.activation(t, self.activation, x)
            with t.within(f"layers.{i}"):
                x = F.linear(t, x, w, bias)
        return x


def mse_loss(t: Tape, x: Tensor) -> Tensor:
    """``torch.nn.functional.mse_loss`` against a target of the same shape: saves its input."""
    target, loss = Tensor(None, x.shape, x.itemsize), t.empty((), x.itemsize)
    squares = t.empty(x.shape, x.itemsize)
    t.cpu("loss")
    aten.call(t, elements, "mse_loss.default", (x, target), loss)
    del squares

    def backward(g: Tensor) -> list[Tensor | None]:
        arguments, y = (g, x, target, 1), t.empty(x.shape, x.itemsize)
        name = "mse_loss_backward.default"
        return [aten.call(t, elements, name, arguments, y)]

    return t.apply(loss, [x], backward)
