"""What PyTorch's modules have in common, and the feed-forward part of a block."""

from __future__ import annotations

from typing import Protocol

from workloads.models.model import ModelSpec
from workloads.torch import functional as F
from workloads.torch.tape import Tape, Tensor


class Linear(Protocol):
    """``x @ w.T (+ bias)``, on one rank or spread over several."""

    def __call__(
        self, t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None
    ) -> Tensor: ...


class Module:
    """Parameters in registration order, plus what parallel wrappers hang on to a module."""

    def __init__(self) -> None:
        self.parameters: list[Tensor] = []
        self.biases: dict[
            Tensor, Tensor
        ] = {}  # of the projections that have one, by weight

    def project(
        self, t: Tape, outputs: int, inputs: int, name: str, bias: bool
    ) -> Tensor:
        """The weight of a linear layer, registered with its bias."""
        w = self.add(t, outputs, inputs, name=name)
        if bias:
            self.biases[w] = self.add(t, outputs, name=f"{name}.bias")
        return w

    def add(self, t: Tape, *shape: int, name: str = "") -> Tensor:
        p = t.parameter(*shape, name=name)
        self.parameters.append(p)
        return p

    def add_if(
        self, t: Tape, wanted: bool, *shape: int, name: str = ""
    ) -> Tensor | None:
        """A parameter that not every model has."""
        return self.add(t, *shape, name=name) if wanted else None

    @property
    def parameter_count(self) -> int:
        return sum(p.elements for p in self.parameters)


def gated(t: Tape, activation: str, x: Tensor, factor: Tensor | None) -> Tensor:
    """The activation of ``x``, times a factor if there is one; one kernel where the tape's layers are compiled."""
    if factor is None:
        return F.activation(t, activation, x)
    if t.compiles:
        return F.gated(t, activation, x, factor)
    return F.mul(t, F.activation(t, activation, x), factor)


class FeedForward(Module):
    """Gated (SwiGLU) or plain feed-forward network."""

    def __init__(self, t: Tape, m: ModelSpec, shards: int = 1) -> None:
        super().__init__()
        self.gated, self.activation = m.gated, m.activation
        ffn = m.ffn // shards
        self.w1 = self.project(t, ffn, m.hidden, "w1", m.bias)
        self.w3 = self.project(t, ffn, m.hidden, "w3", m.bias) if m.gated else None
        self.w2 = self.project(t, m.hidden, ffn, "w2", m.bias)

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        t.cpu("module")

        def up(w: Tensor) -> Tensor:
            return column(t, x, w, self.biases.get(w))

        inner = F.activation(t, self.activation, up(self.w1))
        if self.w3 is not None:
            inner = F.mul(t, inner, up(self.w3))
        return row(t, inner, self.w2, self.biases.get(self.w2))
