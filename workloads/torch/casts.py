"""How operands of compiled linear layers become fp8 or NVFP4: torchao's casts, kernel by kernel.

Sources (pytorch/ao of 2026, BSD-3): float8/float8_linear.py for a scale for each tensor or row,
prototype/moe_training/mxfp8_linear.py for 32 elements (MXFP8), .../nvfp4_training/nvfp4_linear.py for 16 (NVFP4).
Bytes are those that a kernel has to read and write. NVFP4's and MXFP8's kernels take longer than their bytes, which
torchao measured, and so do casts with a scale for each row (`prestep.sim.costs.generated`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prestep.workloads.job.pytorch import PyTorch

READ, BYTE = 2.0, 1.0
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
    2 * BYTE
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
