"""Softmax and losses over rows of logits."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import ELEMENT_BYTES, Operand, Operation, words
from prestep.workloads.operators.copies import packed
from prestep.workloads.operators.pointwise import elementwise
from prestep.workloads.operators.reductions import reduction
from prestep.workloads.operators.tensors import (
    argument,
    first,
    integers,
    launched,
    moved,
    tensor,
    types,
)


def _over_rows(operation: Operation, at: int) -> tuple[Kernel, ...]:
    scores = first(operation)
    dimension = (integers(argument(operation, at, "dim")) or (-1,))[0]
    columns = scores.shape[dimension] if scores.shape else 1
    inner = dimension in (-1, len(scores.shape) - 1)
    shape = (scores.elements // max(1, columns), columns)
    kernels = launched(operation, shape, "" if inner else "outer")
    return *packed(operation, *range(at)), *kernels


def softmax(operation: Operation) -> tuple[Kernel, ...]:
    """_softmax(scores, dimension, ...)."""
    return _over_rows(operation, 1)


def safe_softmax(operation: Operation) -> tuple[Kernel, ...]:
    """_safe_softmax(scores, dimension): rows that are hidden whole become zeros, as they are not otherwise.

    A softmax, which scores are minus infinity, whether all of a row are, and a choice (ATen/native/SoftMax.cpp).
    """
    scores = first(operation)
    result = operation.results[0] if operation.results else scores
    hidden = Operand("bool", scores.shape, device=scores.device)
    rows = Operand("bool", (*scores.shape[:-1], 1), device=scores.device)
    zero = Operand(result.dtype, (), device=scores.device)
    return (
        *softmax(operation),
        *elementwise(Operation("aten.isneginf.default", (scores,), (), (hidden,))),
        *reduction(Operation("aten.all.dim", (hidden, -1, True), (), (rows,))),
        *elementwise(Operation("aten.where.self", (rows, zero, result), (), (result,))),
    )


def softmax_backward(operation: Operation) -> tuple[Kernel, ...]:
    """_softmax_backward_data(gradient, output, dimension, type)."""
    return _over_rows(operation, 2)


def _classes(scores: Operand) -> int:
    """How many scores the one of a row or a pixel is picked from: classes come after the batch, if there is one."""
    return scores.shape[min(1, len(scores.shape) - 1)] if scores.shape else 1


def picked(operation: Operation) -> tuple[Kernel, ...]:
    """nll_loss_forward: one score of each row is read, a cache line each."""
    scores = first(operation)
    columns = _classes(scores)
    rows = scores.elements // max(1, columns)
    return launched(operation, (rows, columns), dtype=scores.dtype, size=40.0 * rows)


def spread(operation: Operation) -> tuple[Kernel, ...]:
    """nll_loss_backward(gradient, scores, ...): all scores' gradients are zeroed, one of each row written."""
    scores = tensor(operation, 1) or first(operation)
    columns = _classes(scores)
    rows = scores.elements // max(1, columns)
    size = float(scores.elements * ELEMENT_BYTES[scores.dtype])
    return launched(operation, (rows, columns), dtype=scores.dtype, size=size)


def elements(operation: Operation) -> tuple[Kernel, ...]:
    """Losses of single elements, reduced."""
    size = moved(operation.operands, operation.results)
    count = max(each.elements for each in operation.operands)
    return launched(operation, (count,), dtype=types(operation), size=size)


ELEMENTS = words(
    "mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward "
    "binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits"
)
SOFTMAXES = {
    **dict.fromkeys(("_softmax", "_log_softmax", "_masked_softmax"), softmax),
    "_safe_softmax": safe_softmax,
    "_softmax_backward_data": softmax_backward,
    "_log_softmax_backward_data": softmax_backward,
}
RULES = {
    **SOFTMAXES,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), picked),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), spread),
    **dict.fromkeys(ELEMENTS, elements),
}
