"""What PyTorch's modules have in common, and the feed-forward part of a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from prestep.sim.extras import lazily
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.torch import liger


class Linear(Protocol):
    """``x @ w.T (+ bias)``, on one rank or spread over several."""

    def __call__(
        self, t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None
    ) -> Tensor: ...


def without(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """Those tensors that are not among others."""
    ids = set(map(id, others))
    return [p for p in tensors if id(p) not in ids]


M = TypeVar("M", bound="Module")


class Module:
    """Parameters in registration order, plus what parallel wrappers hang on to a module.

    `label` is its name in a block.
    """

    label = "ffn"

    def __init__(self) -> None:
        self.parameters: list[Tensor] = []
        self.biases: dict[
            Tensor, Tensor
        ] = {}  # of the projections that have one, by weight

    def project(
        self, t: Tape, outputs: int, inputs: int, name: str, bias: bool, *experts: int
    ) -> Tensor:
        """The weight of a linear layer, or of so many ``experts``, registered with its bias."""
        w = self.add(t, *experts, outputs, inputs, name=name)
        if bias:
            self.biases[w] = self.add(t, *experts, outputs, name=f"{name}.bias")
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

    def child(self, module: M) -> M:
        """A module inside this one, whose parameters are registered here too."""
        self.parameters += module.parameters
        return module

    @property
    def trained(self) -> list[Tensor]:
        """Parameters that get a gradient."""
        return [p for p in self.parameters if p.requires_grad]

    @property
    def parameter_count(self) -> int:
        return sum(p.elements for p in self.parameters)


def gated(
    t: Tape, activation: str, x: Tensor, factor: Tensor | None, clamped: bool = False
) -> Tensor:
    """The activation of ``x``, times a factor if there is one; one kernel where the tape's layers are compiled.

    `clamped`: both are, first, and ``x`` is scaled inside the activation (gpt-oss's SwiGLU; torchtitan,
    models/gpt_oss/model/moe.py, whose sum of the factor and one is left out).
    """
    if clamped and not (t.compiles and factor is not None):
        x = aten.mul_number(t, F.clamp(t, x), 1.702)
        factor = None if factor is None else F.clamp(t, factor)
    if factor is None:
        return aten.activation(t, activation, x)
    if t.compiles:
        return F.gated(t, activation, x, factor)
    return aten.mul(t, aten.activation(t, activation, x), factor)


def scaled_by_token(t: Tape, y: Tensor, scores: Tensor) -> Tensor:
    """``y`` times a sigmoid of each token's score (Qwen2MoeSparseMoeBlock's shared expert)."""
    return aten.mul(t, aten.activation(t, "sigmoid", scores), y)


class FeedForward(Module):
    """Gated (SwiGLU) or plain feed-forward network."""

    beside = (
        False  # it is beside experts, and so compiled where they are (`Tape.compiles`)
    )

    def __init__(
        self, t: Tape, m: ModelSpec, shards: int = 1, clamped: bool = False
    ) -> None:
        super().__init__()
        self.gated, self.activation, self.clamped = m.gated, m.activation, clamped
        ffn = m.ffn // shards
        self.w1 = self.project(t, ffn, m.hidden, "w1", m.bias)
        self.w3 = self.project(t, ffn, m.hidden, "w3", m.bias) if m.gated else None
        self.w2 = self.project(t, m.hidden, ffn, "w2", m.bias)
        curved = ("alpha_p", "alpha_n") if m.activation == "xielu" else ()
        self.curve = [self.add(t, 1, name=name) for name in curved]

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        t.cpu("module")
        return t.call([], x, partial(self._run, t, column, row))

    def _run(self, t: Tape, column: Linear, row: Linear, x: Tensor) -> Tensor:
        inner = self._inner(t, lambda w: column(t, x, w, self.biases.get(w)))
        return row(t, inner, self.w2, self.biases.get(self.w2))

    def _inner(self, t: Tape, up: Callable[[Tensor], Tensor]) -> Tensor:
        """What the projection down takes."""
        if self.clamped or (t.compiles and self.beside):
            first = up(self.w1)
            second = None if self.w3 is None else up(self.w3)
            return gated(t, self.activation, first, second, self.clamped)
        if self.w3 is not None and t.by_liger("glu"):
            return liger.gated(t, up(self.w1), up(self.w3))
        inner = self._activated(t, up(self.w1))
        return inner if self.w3 is None else aten.mul(t, inner, up(self.w3))

    def _activated(self, t: Tape, x: Tensor) -> Tensor:
        """The activation, which is a module of its own in transformers."""
        if self.curve:
            run = partial(F.xielu, t, self.curve)
        else:
            run = partial(aten.activation, t, self.activation)
        return t.call([], x, run) if t.written_out else run(x)
