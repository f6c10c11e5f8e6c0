"""Rows of a table by index: embeddings and their gradients."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import ELEMENT_BYTES, Operation
from prestep.workloads.operators.tensors import argument, integers, launched, tensor


def embedded(operation: Operation) -> tuple[Kernel, ...]:
    """embedding(table, indices): rows read and written; (indices, width, table's rows)."""
    table, indices = tensor(operation, 0), tensor(operation, 1)
    if table is None or indices is None:
        return launched(operation, (1,))
    shape = (indices.elements, table.shape[-1], table.shape[0])
    rows = indices.elements * table.shape[-1] * ELEMENT_BYTES[table.dtype]
    return launched(
        operation, shape, dtype=table.dtype, size=2.0 * rows + indices.bytes
    )


def embedding_gradient(operation: Operation) -> tuple[Kernel, ...]:
    """embedding_dense_backward(gradient, indices, table's rows, ...): the whole gradient is zeroed first."""
    gradient, indices = tensor(operation, 0), tensor(operation, 1)
    if gradient is None or indices is None:
        return launched(operation, (1,))
    rows = (integers(argument(operation, 2)) or (1,))[0]
    width = gradient.shape[-1]
    element = ELEMENT_BYTES[gradient.dtype]
    size = float(element * width * (rows + 3 * indices.elements) + 8 * indices.bytes)
    shape = (indices.elements, width, rows)
    return launched(operation, shape, dtype=gradient.dtype, size=size)


RULES = {
    "embedding": embedded,
    "embedding_dense_backward": embedding_gradient,
}
