"""Memory that operations take and give back while they run."""

from __future__ import annotations

from math import prod

from prestep.workloads.operation import Operation
from prestep.workloads.operators import attention, convolution, recurrent
from prestep.workloads.operators.row_sums import row_sum_scratch
from prestep.workloads.operators.tensors import base, strides_of

#: Operations that first make a tensor as large as their gradient: softmax's, times its output (SoftMax.cu).
AS_LARGE_AS_GRADIENT = ("_softmax_backward_data",)


def scratch(operation: Operation) -> float:
    """Bytes that an operation takes beside its results until it has run."""
    name = base(operation)
    if name in AS_LARGE_AS_GRADIENT:
        return float(operation.operands[0].bytes)
    if name in convolution.RULES:
        return convolution.scratch(operation)
    if name in attention.RULES:
        return attention.scratch(operation)
    if name in recurrent.RULES:
        return recurrent.scratch(operation)
    return _row_sums(operation) if name == "sum" else 0.0


def _row_sums(operation: Operation) -> float:
    """Partial sums over the leading dimensions, as of the gradient of a bias; 0 for other sums."""
    tensor, dimensions = operation.operands[0], operation.arguments[1:2]
    if not dimensions or not isinstance(dimensions[0], tuple):
        return 0.0
    count = len(dimensions[0])
    leading = dimensions[0] == tuple(range(count)) and count < len(tensor.shape)
    if not leading or strides_of(tensor)[-1] != 1:
        return 0.0
    return row_sum_scratch(prod(tensor.shape[:count]), prod(tensor.shape[count:]))
