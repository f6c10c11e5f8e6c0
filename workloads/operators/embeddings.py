"""Rows of tables by index: embeddings and bags of them, and their gradients."""

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


def bag(operation: Operation) -> tuple[Kernel, ...]:
    """_embedding_bag(table, indices, offsets, ...): (indices, width, bags, the table's rows)."""
    table, indices, offsets = (tensor(operation, at) for at in range(3))
    if table is None or indices is None or offsets is None:
        return launched(operation, (1, 1, 1, 1))
    count, width, bags = indices.elements, table.shape[-1], offsets.elements
    size = ELEMENT_BYTES[table.dtype] * width * (count + bags) + 3 * indices.bytes
    shape = count, width, bags, table.shape[0]
    return launched(
        operation, shape, dtype=table.dtype, kind="_embedding_bag", size=float(size)
    )


def bag_gradient(operation: Operation) -> tuple[Kernel, ...]:
    """_embedding_bag_backward(gradient, indices, offsets, ..., table's rows, ..., sparse).

    Sparse: a row for each index. Dense: the whole table is zeroed, indices are sorted, rows of one index summed.
    """
    given, indices, offsets = (tensor(operation, at) for at in range(3))
    if given is None or indices is None or offsets is None:
        return launched(operation, (1, 1, 1, 1))
    rows = (integers(argument(operation, 6)) or (1,))[0]
    sparse = argument(operation, 9) is True
    mode = ("", "mean", "max")[(*integers(argument(operation, 8)), 0)[0]]
    count, width = indices.elements, given.shape[-1]
    element = ELEMENT_BYTES[given.dtype]
    moved = 2 * count * width + (0 if sparse else width * (rows + count))
    size = element * moved + indices.bytes * (1 if sparse else 8)
    return launched(
        operation,
        (count, width, offsets.elements, rows),
        "_".join(filter(None, ("sparse" * sparse, mode))),
        given.dtype,
        size=float(size),
    )


RULES = {
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), bag),
    "_embedding_bag_backward": bag_gradient,
    "embedding": embedded,
    "embedding_dense_backward": embedding_gradient,
}
