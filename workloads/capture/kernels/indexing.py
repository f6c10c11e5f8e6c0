"""Elements picked and put by index, sorted, counted."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.capture.kernels.copies import copied
from prestep.workloads.capture.kernels.tensors import (
    argument,
    base,
    first,
    integers,
    launched,
)
from prestep.workloads.capture.operation import ELEMENT_BYTES, Operand, Operation

#: Elements put into one from which on they wait for each other (guess between measured uniform and skewed indices).
CROWDED = 8


def _rows(
    operation: Operation, picked: Operand, layout: str = ""
) -> tuple[Kernel, ...]:
    """(rows, width) of what is picked or put; indices are read beside."""
    width = picked.shape[-1] if len(picked.shape) > 1 else 1
    indices = [each for each in operation.operands if each.dtype.startswith("int")]
    element = ELEMENT_BYTES[picked.dtype]
    size = 2.0 * element * picked.elements + sum(each.bytes for each in indices)
    shape = (picked.elements // max(1, width), width)
    return launched(
        operation,
        shape,
        layout,
        picked.dtype,
        base(operation).removesuffix("_"),
        size=size,
    )


def pick(operation: Operation) -> tuple[Kernel, ...]:
    """index, index_select, gather: as many as the result has."""
    return _rows(
        operation, operation.results[0] if operation.results else first(operation)
    )


def put(operation: Operation) -> tuple[Kernel, ...]:
    """index_put_, scatter_, index_add_: as many as the source has, in place.

    "add" where they are added, "add_repeated" where many meet in one row, which takes turns.
    """
    target = first(operation)
    others = [
        each
        for each in operation.operands[1:]
        if each.dtype == target.dtype and each.shape
    ]
    source = others[-1] if others else _index(operation, target)
    added = argument(operation, 3, "accumulate") is True
    crowded = source.elements > CROWDED * target.elements
    layout = ("add_repeated" if crowded else "add") if added else ""
    return _rows(operation, Operand(target.dtype, source.shape), layout)


def _index(operation: Operation, target: Operand) -> Operand:
    indices = [each for each in operation.operands if each.dtype.startswith("int")]
    return indices[0] if indices else target


def copied_then_put(operation: Operation) -> tuple[Kernel, ...]:
    """index_put, scatter, index_add: a copy of the target first."""
    target = first(operation)
    return (
        *copied(target, Operand(target.dtype, target.shape, device=target.device)),
        *put(operation),
    )


def order(operation: Operation) -> tuple[Kernel, ...]:
    """sort, topk and their like along a dimension: (lines, length)."""
    whole = first(operation)
    numbers = integers(
        argument(operation, 2 if base(operation) == "topk" else 1, "dim")
    )
    at = (
        numbers[0]
        if numbers and -len(whole.shape) <= numbers[0] < len(whole.shape)
        else -1
    )
    length = whole.shape[at] if whole.shape else 1
    return launched(
        operation, (whole.elements // max(1, length), length), dtype=whole.dtype
    )


def elements(operation: Operation) -> tuple[Kernel, ...]:
    """nonzero, unique, histograms: by the elements looked at."""
    whole = first(operation)
    return launched(operation, (whole.elements,), dtype=whole.dtype)


PUTS = (
    "index_put",
    "index_add",
    "index_copy",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "index_fill",
    "masked_scatter",
)
RULES = {
    **dict.fromkeys(
        (
            "index",
            "index_select",
            "gather",
            "masked_select",
            "_unsafe_index",
            "take",
            "take_along_dim",
        ),
        pick,
    ),
    **dict.fromkeys((f"{name}_" for name in PUTS), put),
    "_index_put_impl_": put,
    **dict.fromkeys(PUTS, copied_then_put),
    "_unsafe_index_put": copied_then_put,
    **dict.fromkeys(("sort", "topk", "argsort", "kthvalue", "msort"), order),
    **dict.fromkeys(
        (
            "nonzero",
            "_unique2",
            "unique_dim",
            "unique_consecutive",
            "bincount",
            "histc",
            "searchsorted",
            "bucketize",
            "isin",
        ),
        elements,
    ),
}
