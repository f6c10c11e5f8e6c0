"""Recurrent layers by cuDNN: a product of all inputs for each layer and direction, then one step after the other."""

from __future__ import annotations

from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.tensors import argument, first, launched


def _weights(operation: Operation) -> list[tuple[Operand, Operand]]:
    """Of inputs and of states, (gates x hidden, width) each, by layer and direction."""
    given = argument(operation, 1)
    matrices = [
        each
        for each in (given if isinstance(given, tuple) else ())
        if isinstance(each, Operand) and len(each.shape) == 2
    ]
    return list(zip(matrices[::2], matrices[1::2], strict=False))


def _times(operation: Operation) -> tuple[int, int]:
    """Steps one after the other, and rows of all of them."""
    source = first(operation)
    backward = operation.name.split(".")[1].endswith("backward")
    place = 14 if not backward else 18
    sizes = argument(operation, place)
    if isinstance(sizes, tuple) and sizes:
        return len(sizes), source.shape[0]
    first_is_batch = argument(operation, 10 if not backward else 14) is True
    return source.shape[1 if first_is_batch else 0], prod(source.shape[:2])


def _passes(operation: Operation, times: int) -> tuple[Kernel, ...]:
    """`times`: products in place of each one of forward: 2 in backward."""
    if not _weights(operation):
        return launched(operation, (first(operation).elements,))
    steps, rows = _times(operation)
    dtype = first(operation).dtype
    kernels: list[Kernel] = []
    for inputs, states in _weights(operation):
        for matrix, count in ((inputs, 1), (states, steps)):
            wide, width = matrix.shape
            size = float(matrix.bytes + rows // count * (wide + width) * 4)
            flops = 2.0 * times * (rows // count) * wide * width
            shape = (rows // count * wide,)
            one = launched(
                operation, shape, "", dtype, "_cudnn_rnn", flops, size * times
            )
            kernels += one * count
    return tuple(kernels)


def forward(operation: Operation) -> tuple[Kernel, ...]:
    """_cudnn_rnn(input, weights, ...)."""
    return _passes(operation, 1)


def backward(operation: Operation) -> tuple[Kernel, ...]:
    """_cudnn_rnn_backward(input, weights, ...): gradients of what went in and of the weights."""
    return _passes(operation, 2)


RULES = {"_cudnn_rnn": forward, "_cudnn_rnn_backward": backward}
