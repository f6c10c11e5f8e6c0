"""gpt-oss's experts as transformers runs them: weights that multiply as they lie, biases, interleaved gates.

Every second column of the first product is a gate; both are clamped first (transformers 5.24, GptOssExperts). A bias is
repeated for each row of its expert and added in place (integrations/moe.py, _grouped_linear).
"""

from __future__ import annotations

from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.torch import aten
from prestep.workloads.torch import indexing as I
from prestep.workloads.torch.grouped_experts import product
from prestep.workloads.torch.joined_experts import JoinedExperts
from prestep.workloads.torch.tape import Tape, Tensor

#: What gates are clamped to (swiglu_limit), and scaled by inside the sigmoid (swiglu_alpha).
LIMIT, ALPHA = 7.0, 1.702


class ClampedExperts(JoinedExperts):
    """The feed-forward networks of ``experts`` experts, each split over ``parts`` ranks."""

    def _weights(self, t: Tape, m: ModelSpec, experts: int) -> tuple[Tensor, Tensor]:
        """Both weights, as (expert, input, output)."""
        shapes = (m.hidden, 2 * self.ffn), (self.ffn, m.hidden)
        made = []
        for name, (inputs, outputs) in zip(("w1", "w2"), shapes, strict=True):
            w = self.add(t, experts, inputs, outputs, name=name)
            self.biases[w] = self.add(t, experts, outputs, name=f"{name}.bias")
            made.append(w)
        return made[0], made[1]

    def _inner(self, t: Tape, x: Tensor, numbers: Tensor) -> Tensor:
        y = self._projected(t, x, self.w1, numbers)
        gate, up = (_every_second(t, y, begin) for begin in (0, 1))
        del y
        gate, up = _clamped(t, gate, None), _clamped(t, up, -LIMIT)
        sigmoid = aten.activation(t, "sigmoid", aten.mul_number(t, gate, ALPHA))
        gate = aten.mul(t, gate, sigmoid)
        del sigmoid
        return aten.mul(t, aten.add_number(t, up, 1), gate)

    def _projected(self, t: Tape, x: Tensor, w: Tensor, numbers: Tensor) -> Tensor:
        each = numbers.elements // w.shape[0]
        bias = I.index(t, self.biases[w], numbers, each)
        return _added(t, product(t, x, w, as_it_lies=True), bias)


def _added(t: Tape, x: Tensor, other: Tensor) -> Tensor:
    """``x.add_(other)``: saves nothing."""
    y = aten.view(x, x.shape, aten.strides_of(x))
    aten.call(t, kernels_of, "add_.Tensor", (x, other), y)
    return t.apply(y, [x, other], lambda g: [g, g])


def _every_second(t: Tape, x: Tensor, begin: int) -> Tensor:
    """``x[..., begin::2]``: backward writes the gradient among zeros."""
    shape, itemsize = x.shape, x.itemsize

    def backward(g: Tensor) -> list[Tensor | None]:
        whole, where = t.empty(shape, itemsize), (1, begin, aten.LAST, 2)
        name, arguments = "slice_backward.default", (g, shape, *where)
        return [aten.call(t, kernels_of, name, arguments, whole)]

    t.cpu("view")
    y = aten.view(x, (shape[0], shape[1] // 2), (shape[1], 2))
    y.offset += begin
    return t.apply(y, [x], backward)


def _clamped(t: Tape, x: Tensor, low: float | None) -> Tensor:
    """``x.clamp(low, LIMIT)``: saves its input, which says where the gradient passes."""
    t.saves(x.requires_grad)
    kind = x.operand.dtype

    def backward(g: Tensor) -> list[Tensor | None]:
        options = {"dtype": kind, "layout": "torch.strided"}
        zero = I.made(t, "scalar_tensor.default", (0.0,), (), kind, **options)
        above = None if low is None else _compared(t, "ge.Scalar", x, low)
        seen = _compared(t, "le.Scalar", x, LIMIT)
        if above is not None:
            aten.call(t, kernels_of, "logical_and_.default", (above, seen), above)
            seen = above
        return [I.made(t, "where.self", (seen, g, zero), g.shape, kind)]

    return t.apply(I.made(t, "clamp.default", (x, low, LIMIT)), [x], backward)


def _compared(t: Tape, name: str, x: Tensor, number: float) -> Tensor:
    return I.made(t, name, (x, number), None, "bool")
