"""Memory that an operation takes and gives back while it runs: no recording shows it, since C++ keeps it to itself."""

from __future__ import annotations

from workloads.capture.kernels.tensors import base
from workloads.capture.operation import Operation

#: Operations that first make a tensor as large as their gradient: softmax's, times its output (SoftMax.cu).
AS_LARGE_AS_GRADIENT = ("_softmax_backward_data",)


def temporary(operation: Operation) -> float:
    """Bytes of it."""
    if base(operation) not in AS_LARGE_AS_GRADIENT:
        return 0.0
    return float(operation.operands[0].bytes)
