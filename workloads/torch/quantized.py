"""Compiled linear layers in a quantized format: the casts of their operands, and products of rows.

A cast that Inductor runs in the kernel that makes its operand is an operation over elements; the others stay kernels.
Operands that several layers share are cast once each way, as AOTAutograd finds them equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operators.pointwise import elementwise
from prestep.workloads.torch import aten
from prestep.workloads.torch.aten_products import forward_layout, multiply_narrow
from prestep.workloads.torch.casts import Casts, Pass, Passes, casts_of
from prestep.workloads.torch.tape import Tape, Tensor

BYTE = 1
#: The operation that finds an operand's largest value.
LARGEST = "largest"


def product(t: Tape, x: Tensor, w: Tensor, bias: Tensor | None, dtype: str) -> Tensor:
    """``x @ w.T`` of cast operands."""
    n, k = w.shape
    casts = casts_of(dtype, t.choices)
    rows = x.elements // k
    narrow = _cast(t, x, casts.activations, casts.kept)
    weight = _cast(t, w, casts.weights, casts.kept)
    layout = forward_layout(casts.products, casts.layout)
    multiply_narrow(t, rows, n, k, casts.products, layout)
    inputs = [x, w] if bias is None else [x, bias, w]
    layer = _Layer(t, casts, x, w, bias, narrow, weight)
    y = t.empty((*x.shape[:-1], n), x.itemsize)
    t.note([narrow, weight, *inputs[1:-1]], [y], "product")
    return t.apply(y, inputs, layer.backward)


@dataclass(frozen=True)
class _Layer:
    """A layer that has run: its operands as they were, and as they were cast."""

    t: Tape
    casts: Casts
    x: Tensor
    w: Tensor
    bias: Tensor | None
    narrow: Tensor
    weight: Tensor

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the inputs: first that of the input, whose cast Inductor may join to what makes the gradient."""
        t, casts, (n, k) = self.t, self.casts, self.w.shape
        rows = g.elements // n
        early = _cast(t, g, casts.gradients, None)
        of_x = self._data_grad(early, rows) if self.x.requires_grad else None
        of_w: Tensor | None = None
        if self.w.requires_grad:
            late = _cast(t, self._of(g, early), casts.gradients_late, None)
            kept = self._of(self.x, self.narrow)
            x = _cast(t, kept, casts.activations_late, None)
            multiply_narrow(t, n, k, rows, casts.products, casts.layout)
            of_w = t.empty(self.w.shape, self.w.itemsize)
            t.note([late, x], [of_w], "product")
        if self.bias is None:
            return [of_x, of_w]
        trains = self.bias.requires_grad
        flat = aten.view(g, (rows, n), ())
        return [of_x, aten.sum_to(t, flat, self.bias.shape) if trains else None, of_w]

    def _data_grad(self, g: Tensor, rows: int) -> Tensor:
        t, (n, k) = self.t, self.w.shape
        w = _cast(t, self._of(self.w, self.weight), self.casts.weights_late, None)
        casts = self.casts
        multiply_narrow(t, rows, k, n, casts.products, casts.layout)
        grad = t.empty(self.x.shape, self.x.itemsize)
        t.note([g, w], [grad], "product")
        return grad

    def _of(self, wide: Tensor, narrow: Tensor) -> Tensor:
        """What backward casts: copies that forward made where these are kept or made again, else what they are of."""
        kept = self.casts.kept is not None or (self.casts.again and self.t.repeats)
        return narrow if kept else wide


def _cast(t: Tape, x: Tensor, passes: Passes, kept: float | None) -> Tensor:
    """An operand after its casts."""
    if not passes:
        return x
    return t.once(x, partial(_passed, t, x, passes, kept), (passes, kept))


def _passed(t: Tape, x: Tensor, passes: Passes, kept: float | None) -> Tensor:
    y = x
    for each in passes:
        last = each is passes[-1]
        if each.spared:
            y = _joined(t, x, each)
            continue
        size = math.ceil(x.elements * (kept or BYTE)) if last else BYTE
        moved = each.moved * x.elements
        t.launch(Kernel("fused_pointwise", (x.elements,), "bf16", each.function, moved))
        made = t.empty((size,), BYTE)
        t.note([x, y], [made], LARGEST if each.largest else "cast")
        y = made
    return y


def _joined(t: Tape, x: Tensor, each: Pass) -> Tensor:
    """A cast, or the search of the largest value, in the kernel that makes the operand if one is generated."""
    if each.largest:  # one number, whatever it is found of
        y = t.empty((1,), 4)
        y.shape, y.strides = x.shape, (0,) * len(x.shape)
        return aten.call(t, elementwise, f"{LARGEST}.default", (x,), y)
    name = "rowcast.default" if each.function else "_to_copy.default"
    return aten.call(t, elementwise, name, (x,), t.empty(x.shape, BYTE))
