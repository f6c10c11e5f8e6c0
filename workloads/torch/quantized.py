"""Compiled linear layers in a quantized format: the casts of their operands, and products of rows.

A cast that Inductor runs in the kernel that makes its operand is an operation over elements; the others stay kernels.
Operands that several layers share are cast once each way, as AOTAutograd finds them equal.

Sources (pytorch/ao of 2026, BSD-3): float8/float8_linear.py for a scale for each tensor or row,
prototype/moe_training/mxfp8_linear.py for 32 elements (MXFP8), .../nvfp4_training/nvfp4_linear.py for 16 (NVFP4).
Bytes are those that a kernel has to read and write. NVFP4's and MXFP8's kernels take longer than their bytes, which
torchao measured, and so do casts with a scale for each row (`prestep.sim.costs.generated`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.operators.pointwise import elementwise
from prestep.workloads.torch import aten
from prestep.workloads.torch.aten_products import forward_layout, multiply_narrow
from prestep.workloads.torch.tape import Tape, Tensor

READ, BYTE = 2.0, 1
BLOCK = 1 / 32  # bytes of scale for each element of MXFP8
FP4 = 1 / 2 + 1 / 16  # an element of NVFP4 and its part of a scale


@dataclass(frozen=True)
class Pass:
    """A kernel over an operand.

    Attributes
    ----------
    moved : float
        Bytes for each element.
    spared : float
        Those of them that are spared where Inductor makes the operand and so runs both in one kernel.
    largest : bool
        It finds the largest value, which selective checkpointing keeps (aten.max in torchtitan's list).
    function : str
        What it computes beside, where that takes longer than the bytes (`prestep.sim.costs.generated`).
    """

    moved: float
    spared: float = 0.0
    largest: bool = False
    function: str = ""


Passes = tuple[Pass, ...]


@dataclass(frozen=True)
class Casts:
    """The kernels that make the operands of a linear layer's three products.

    Attributes
    ----------
    products : str
        Type of the products.
    activations, weights : tuple of Pass
        Before the forward product.
    gradients, weights_late : tuple of Pass
        Before the product that makes the input's gradient.
    gradients_late, activations_late : tuple of Pass
        Before the product that makes the weight's gradient.
    kept : float, optional
        Bytes of an element of an input or a weight that backward finds; None: inputs as they are.
    again : bool
        Casts run again where a checkpointed product's result was kept: backward makes its operands from them.
    layout : str
        Of the products: "nt_rows" where each row has a scale.
    """

    products: str
    activations: Passes
    weights: Passes
    gradients: Passes
    weights_late: Passes
    gradients_late: Passes
    activations_late: Passes
    kept: float | None = None
    again: bool = False
    layout: str = "nt"


_LARGEST = Pass(READ, READ, largest=True)
_CAST = Pass(READ + BYTE)
_TURNED = Pass(
    2.0 * BYTE
)  # a transposed copy: products take rows of one, columns of the other
_BY_ROW = Pass(
    READ + BYTE, READ
)  # a row stays on chip between its largest value and its cast
_BY_COLUMN = Pass(2 * READ + BYTE)
_GRADIENT_BY_ROW = Pass(READ + BYTE, READ, function="rowcast")
_TOKENS_BY_COLUMN = Pass(2 * READ + BYTE, function="columncast")
# The scales are put in the products' order by a kernel of their own.
_SWIZZLED = Pass(2 * BLOCK)
_MX = (Pass(READ + BYTE + BLOCK, function="mxrow"), _SWIZZLED)
_MX_LATE = (Pass(READ + BYTE + BLOCK, function="mxcolumn"), _SWIZZLED)
# The largest values of rows and of rotated columns, then both copies at once; a weight is not rotated, gradients are
# rounded at random.
_FOUND = Pass(READ, function="rotatedmax")
_FP4 = (_FOUND, Pass(READ + 2 * FP4, function="fp4"))
_FP4_WEIGHT = (Pass(READ), Pass(READ + 2 * FP4, function="fp4block"))
_FP4_GRADIENT = (_FOUND, Pass(READ + 2 * FP4, function="fp4random"))

#: Of fp8, by how operands get their scales.
FP8 = {
    "dynamic": Casts(
        "fp8",
        (_LARGEST, _CAST),
        (Pass(READ, largest=True), _CAST),
        (_LARGEST, _CAST),
        (_TURNED,),
        (_TURNED,),
        (_TURNED,),
        again=True,
    ),
    "rowwise": Casts(
        "fp8",
        (_BY_ROW,),
        (Pass(READ + BYTE),),
        (_GRADIENT_BY_ROW,),
        (_BY_COLUMN,),
        (_TOKENS_BY_COLUMN,),
        (_TOKENS_BY_COLUMN,),
        layout="nt_rows",
    ),
    "mx": Casts("fp8", _MX, _MX, _MX, _MX_LATE, _MX_LATE, _MX_LATE),
}
NVFP4 = Casts(
    "nvfp4", _FP4, _FP4_WEIGHT, _FP4_GRADIENT, (), (), (), kept=FP4, again=True
)


def casts_of(products: str, choices: PyTorch | None) -> Casts:
    """How layers cast whose products are of a type."""
    if products == "nvfp4":
        return NVFP4
    choices = choices or PyTorch()
    casts = FP8[choices.fp8_scaling]
    if choices.fp8_scaling == "rowwise" and not choices.since(2, 11):
        # CUTLASS applied the scales of rows in fp32, as products of blocks do; cuBLAS does it on the way out.
        casts = replace(casts, products="fp8_block", layout="nt")
    # Gathered weights were cast before, with a scale found behind the optimizer.
    return replace(casts, weights=()) if choices.fp8_param_gather else casts


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
