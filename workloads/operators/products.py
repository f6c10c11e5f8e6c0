"""Matrix products: cuBLAS, with the layout that the operands' strides ask for."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import ELEMENT_BYTES, Operand, Operation
from prestep.workloads.operators.copies import copied
from prestep.workloads.operators.tensors import (
    argument,
    first,
    format_of,
    launched,
    moved,
    strides_of,
    tensor,
)

#: Complex numbers, and what their parts are. A product of m x k by k x n complex numbers is one of real numbers, m x 2k
#: by 2k x 2n: four multiplications for each, as in cuBLAS's CGEMM.
REAL = {"complex32": "fp16", "complex64": "fp32", "complex128": "fp64"}
#: Where aten._scaled_mm has `use_fast_accum`.
FAST = 7


def layout(left: Operand, right: Operand) -> str:
    """As BLAS says it of row-major operands: "nt" is x w^T with both stored by rows, "nn", "tn"."""
    return _rows_first(left, "n", "t") + _rows_first(right, "n", "t")


def _rows_first(matrix: Operand, yes: str, no: str) -> str:
    rows, columns = strides_of(matrix)[-2:]
    by_columns = rows == 1 and columns != 1 and matrix.shape[-2] > 1
    return no if by_columns else yes


def alignment(left: Operand, right: Operand) -> str:
    """ "" where rows of all three matrices start at multiples of 16 bytes, else "_even" (of 4 bytes) or "_odd"."""
    kept = layout(left, right)
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    ends = (m if kept[0] == "t" else k, k if kept[1] == "t" else n, n)
    size = ELEMENT_BYTES[left.dtype]
    worst = min(gcd(end * size, 16) for end in ends)
    return "" if worst == 16 else "_even" if worst >= 4 else "_odd"


def _product(
    operation: Operation, left: Operand | None, right: Operand | None
) -> tuple[Kernel, ...]:
    if left is None or right is None or len(left.shape) < 2 or len(right.shape) < 2:
        return launched(operation, (1, 1, 1))
    m, k = left.shape[-2:]
    n = right.shape[-1]
    batch = prod(left.shape[:-2])
    dtype = format_of(left, operation)
    if dtype in REAL:
        dtype, n, k = REAL[dtype], 2 * n, 2 * k
    shape = (m, n, k) if len(left.shape) == 2 else (batch, m, n, k)
    out = operation.results[0].dtype if operation.results else left.dtype
    wide = "_fp32" if out == "fp32" and dtype not in ("fp32", "tf32") else ""
    return launched(
        operation,
        shape,
        layout(left, right) + wide + alignment(left, right),
        dtype,
        flops=2.0 * batch * m * n * k,
    )


def two(operation: Operation) -> tuple[Kernel, ...]:
    """mm, bmm: left and right."""
    return _product(operation, tensor(operation, 0), tensor(operation, 1))


def scaled(operation: Operation) -> tuple[Kernel, ...]:
    """_scaled_mm: how its scales lie, and whether it adds up in fewer bits, take their time.

    The layout ends on "_rows" where every row has a scale in fp32, and on "_fast" where sums are not kept in 32 bits;
    where parts of rows have scales, the format is another one.
    """
    products = _product(operation, tensor(operation, 0), tensor(operation, 1))
    scale = argument(operation, 2, "scale_a")
    if isinstance(scale, Operand) and scale.dtype == "fp32" and scale.elements > 1:
        if scale.shape[-1] == 1:
            products = _ending(products, "_rows")
        else:
            products = tuple(replace(one, dtype="fp8_block") for one in products)
    fast = argument(operation, FAST, "use_fast_accum") is True
    return _ending(products, "_fast") if fast else products


def _ending(products: tuple[Kernel, ...], on: str) -> tuple[Kernel, ...]:
    """The same kernels in a layout that says one thing more."""
    return tuple(replace(one, layout=one.layout + on) for one in products)


def added(operation: Operation) -> tuple[Kernel, ...]:
    """addmm, baddbmm: what is added, left and right."""
    return _product(operation, tensor(operation, 1), tensor(operation, 2))


def copied_then_added(operation: Operation) -> tuple[Kernel, ...]:
    """baddbmm: what is added to every row is copied to the result first, which the product then reads.

    Source: ATen/native/cuda/Blas.cpp, baddbmm_out_cuda_impl; recorded on an H100 (Bloom's distances).
    """
    result = operation.results[0] if operation.results else None
    if result is None or first(operation).shape == result.shape:
        return added(operation)
    return *copied(first(operation), result), *added(operation)


def grouped(operation: Operation) -> tuple[Kernel, ...]:
    """_grouped_mm: rows of one operand belong to the experts of the other; those behind the last one's are not read."""
    left, right = tensor(operation, 0), tensor(operation, 1)
    if left is None or right is None:
        return launched(operation, (1,))
    if isinstance(rows := dict(operation.options).get("rows"), int):
        summed = len(left.shape) == len(right.shape) == 2  # a weight's gradient
        left = replace(
            left, shape=(left.shape[0], rows) if summed else (rows, left.shape[1])
        )
        right = replace(right, shape=(rows, right.shape[1])) if summed else right
        made = operation.results
        made = (
            made
            if summed
            else tuple(replace(y, shape=(rows, y.shape[1])) for y in made)
        )
        read = left, right, *operation.arguments[2:]
        operation = replace(operation, arguments=read, results=made)
    experts = max(left.shape[:-2] + right.shape[:-2], default=1)
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    ends = [each for each in operation.operands[2:] if each.dtype.startswith("int")]
    if len(left.shape) == len(right.shape) == 2 and ends:
        experts = ends[0].elements
    dtype, lies, flops = (
        format_of(left, operation),
        layout(left, right),
        2.0 * m * n * k,
    )
    if left.dtype in ("fp32", "fp16"):
        # CUDA's kernel takes bf16; others are multiplied group by group (ATen/native/GroupedMMUtils.h).
        short = (m // experts, n, k) if lies[0] == "n" else (m, n, k // experts)
        size = moved(operation.operands, operation.results) / experts
        one = launched(operation, short, lies, dtype, "mm", flops / experts, size)
        return one * experts
    return launched(operation, (experts, m, n, k), lies, dtype, flops=flops)


def vectors(operation: Operation) -> tuple[Kernel, ...]:
    """dot, mv: bound by memory."""
    return launched(operation, operation.operands[0].shape)


RULES = {
    **dict.fromkeys(("mm", "bmm", "_int_mm"), two),
    "_scaled_mm": scaled,
    **dict.fromkeys(
        ("addmm", "addmm_", "baddbmm_", "addbmm", "_addmm_activation"), added
    ),
    "baddbmm": copied_then_added,
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), grouped),
    **dict.fromkeys(("dot", "vdot", "mv", "addmv"), vectors),
}
