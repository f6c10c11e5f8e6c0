"""Memory that operations take and give back while they run."""

from __future__ import annotations

from math import prod

from prestep.sim.extras import lazily
from prestep.workloads.operation import Operation
from prestep.workloads.operators import attention
from prestep.workloads.operators.tensors import base, strides_of

with lazily():
    from prestep.workloads.operators import convolution, recurrent, row_sums

#: Operations that first make a tensor as large as their gradient: softmax's, times its output (SoftMax.cu).
AS_LARGE_AS_GRADIENT = ("_softmax_backward_data",)
#: Of operations that sort indices: which operand these are, and how many tensors as large as they are made.
BY_INDICES = {"sort": (0, 2), "_index_put_impl_": (1, 6)}


def scratch(operation: Operation) -> float:
    """Bytes that an operation takes beside its results until it has run."""
    name = base(operation)
    if name in AS_LARGE_AS_GRADIENT:
        return float(operation.operands[0].bytes)
    if name == "_safe_softmax":  # a softmax, and which scores are hidden (SoftMax.cpp)
        return float(operation.results[0].bytes + operation.operands[0].elements)
    if name in BY_INDICES:
        at, times = BY_INDICES[name]
        return float(times * operation.operands[at].bytes)
    if "convolution" in name:
        return convolution.scratch(operation)
    if name in attention.RULES:
        return attention.scratch(operation)
    if "_rnn" in name:
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
    return row_sums.row_sum_scratch(
        prod(tensor.shape[:count]), prod(tensor.shape[count:])
    )
