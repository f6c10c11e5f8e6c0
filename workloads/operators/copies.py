"""Copies, casts, joins and fills, also those that hide in other operations."""

from __future__ import annotations

from collections.abc import Callable

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import Operand, Operation, words
from prestep.workloads.operators.tensors import (
    argument,
    base,
    contiguous,
    dense,
    first,
    follows,
    launched,
    layout_beside,
    layout_of,
    moved,
    on_gpu,
    read_by,
    tensor,
    types,
)

#: Parts of a join from which on it is one of a model's tensors, whose sizes differ (a guess between 8 and 74 parts, of
#: which there are rows).
MANY = 32


def copied(source: Operand, target: Operand) -> tuple[Kernel, ...]:
    """What copies one tensor to another: by memory or element by element, over PCIe where one is on the host."""
    call = Operation("aten.copy_.default", (source,), (), (target,))
    if not target.elements or source.device == target.device == "cpu":
        return ()
    if "cpu" in (source.device, target.device):
        way = "to_gpu" if source.device == "cpu" else "to_host"
        size = float(target.bytes)
        return launched(call, (target.bytes,), way, "uint8", "memcpy", size=size)
    layout = layout_of((source,), target)
    return launched(
        call, (target.elements,), layout, kind="copy", size=moved((source,), (target,))
    )


def packed(operation: Operation, *places: int) -> tuple[Kernel, ...]:
    """The copies that an operation makes first of operands with gaps or in another order, at these places."""
    operands = (tensor(operation, place) for place in places)
    return tuple(
        kernel
        for operand in operands
        if operand is not None and not follows(operand, contiguous(operand.shape))
        for kernel in copied(
            operand, Operand(operand.dtype, operand.shape, device=operand.device)
        )
    )


def filled(target: Operand) -> tuple[Kernel, ...]:
    """What sets a tensor to one value."""
    if target.device == "cpu" or not target.elements:
        return ()
    call = Operation("aten.fill_.default", (), (), (target,))
    layout = "" if dense(target) else "strided"
    return launched(call, (target.elements,), layout, target.dtype, "fill")


def copy(operation: Operation) -> tuple[Kernel, ...]:
    """clone, _to_copy: the first tensor into the result."""
    source = first(operation)
    return copied(source, operation.results[0] if operation.results else source)


def copy_into(operation: Operation) -> tuple[Kernel, ...]:
    """copy_(target, source)."""
    target, source = tensor(operation, 0), tensor(operation, 1)
    if target is None or source is None:
        return launched(operation, (1,))
    return copied(source, target)


def fill(operation: Operation) -> tuple[Kernel, ...]:
    """zeros, full, fill_, zero_: what is returned is set; zero_ of nothing returned, the first tensor."""
    return filled(operation.results[0] if operation.results else first(operation))


def read_back(operation: Operation) -> tuple[Kernel, ...]:
    """_local_scalar_dense: a number goes to the host, which waits for it."""
    source = first(operation)
    return copied(source, Operand(source.dtype, source.shape, device="cpu"))


def join(operation: Operation) -> tuple[Kernel, ...]:
    """cat, stack: by stretches; "inner" where another dimension than the first is joined, "list" of many tensors."""
    parts = on_gpu(read_by(operation))
    if not parts:
        return ()
    size = 2.0 * sum(part.bytes for part in parts)
    at = argument(operation, 1, "dim")
    inner = isinstance(at, int) and at % max(1, len(parts[0].shape)) != 0
    gaps = any(part.strides and part.elements > 1 for part in parts)
    layout = ("strided" if gaps else "inner") if inner or gaps else ""
    layout = layout or "list" * (len(parts) > MANY)
    count = sum(part.elements for part in parts)
    return launched(operation, (count,), layout, parts[0].dtype, "cat", size=size)


def filled_then_copied(operation: Operation) -> tuple[Kernel, ...]:
    """slice_backward, select_backward, constant_pad_nd: zeros with a copy of the operand among them."""
    source = first(operation)
    if not operation.results:
        return copied(source, source)
    result = operation.results[0]
    part = source if source.elements < result.elements else result
    gap = tuple(part.shape)
    inside = Operand(result.dtype, gap, _with_gaps(gap, result), result.device)
    return (*filled(result), *copied(source, inside))


def _with_gaps(shape: tuple[int, ...], whole: Operand) -> tuple[int, ...]:
    """Strides of a part of a contiguous tensor."""
    strides = contiguous(whole.shape)
    return strides[len(strides) - len(shape) :]


def copied_then_filled(operation: Operation) -> tuple[Kernel, ...]:
    """masked_fill: a copy, of which elements are then set where the mask says."""
    target = operation.results[0] if operation.results else first(operation)
    dense_target = Operand(target.dtype, target.shape, target.strides, target.device)
    return (*copied(first(operation), dense_target), *masked(operation))


def masked(operation: Operation) -> tuple[Kernel, ...]:
    """masked_fill_(target, mask, value): elements and mask are read, few are written."""
    target = operation.results[0] if operation.results else first(operation)
    mask = tensor(operation, 1) or target
    layout = layout_beside(mask, target) if dense(target) else "strided"
    size = moved((target, mask), (target,))
    return launched(
        operation, (target.elements,), layout, target.dtype, "masked_fill", size=size
    )


def repeated(operation: Operation) -> tuple[Kernel, ...]:
    """repeat, roll, flip, triangles and others that write each element of the result from one of the operand."""
    result = operation.results[0] if operation.results else first(operation)
    return launched(
        operation,
        (result.elements,),
        dtype=types(operation),
        kind=base(operation).removesuffix("_"),
    )


def copied_out(elements: int, size: float) -> tuple[Kernel, ...]:
    """split_with_sizes_copy: one buffer into tensors; a table of where they lie goes to the GPU first."""
    table = Kernel("copy_h2d", (4096,), bytes=32768.0)
    return table, Kernel("split_with_sizes_copy", (elements,), bytes=size)


def put_together(elements: int, size: float) -> tuple[Kernel, ...]:
    """chunk_cat: tensors into one buffer, rank by rank; its table has a line for each stretch."""
    table = Kernel("copy_h2d", (4096,), bytes=426000.0)
    return table, Kernel("chunk_cat", (elements,), bytes=size)


def put_in(elements: int, size: float) -> tuple[Kernel, ...]:
    """all_gather_copy_in: tensors into their part of a gather's buffer."""
    return (Kernel("foreach_copy", (elements,), bytes=size),)


def stretches(
    launches: Callable[[int, float], tuple[Kernel, ...]],
) -> Callable[[Operation], tuple[Kernel, ...]]:
    """The rule of an operation that copies a list of tensors to or from one buffer."""

    def rule(operation: Operation) -> tuple[Kernel, ...]:
        parts = on_gpu(operation.operands)
        values = (*operation.arguments, *(value for _, value in operation.options))
        lists = (each for each in values if isinstance(each, tuple))
        tensors = (on_gpu(x for x in each if isinstance(x, Operand)) for each in lists)
        members = max(tensors, key=len, default=()) or parts
        if not parts:
            return ()
        count = sum(part.elements for part in members)
        return launches(count, _both_sides(members, parts))

    return rule


def _both_sides(members: tuple[Operand, ...], parts: tuple[Operand, ...]) -> float:
    """Bytes of a list and of as many elements on the other side."""
    own = sum(part.bytes for part in members)
    others = [part for part in parts if part not in members]
    element = (
        others[0].bytes / max(1, others[0].elements)
        if others
        else own / max(1, sum(p.elements for p in members))
    )
    return own + element * sum(part.elements for part in members)


def host_memory(operation: Operation) -> tuple[Kernel, ...]:
    """Ranges and the like: written, nothing read."""
    result = operation.results[0] if operation.results else None
    if result is None or result.device == "cpu" or not result.elements:
        return ()
    return launched(operation, (result.elements,), "", result.dtype)


COPIES = words(
    "clone _to_copy contiguous to _to_dense lift_fresh_copy alias_copy view_copy expand_copy"
)
FILLS = words(
    "fill_ fill zero_ zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor"
)
REPEATS = words("repeat roll flip tril triu tril_ triu_ pixel_shuffle pixel_unshuffle")
RULES = {
    **dict.fromkeys(COPIES, copy),
    **dict.fromkeys(("copy_", "copy"), copy_into),
    **dict.fromkeys(FILLS, fill),
    "_local_scalar_dense": read_back,
    **dict.fromkeys(("cat", "stack", "_foreach_cat"), join),
    **dict.fromkeys(
        ("slice_backward", "select_backward", "constant_pad_nd"), filled_then_copied
    ),
    "masked_fill": copied_then_filled,
    "masked_fill_": masked,
    **dict.fromkeys(REPEATS, repeated),
    **dict.fromkeys(("split_with_sizes_copy", "split_copy"), stretches(copied_out)),
    **dict.fromkeys(("_chunk_cat", "chunk_cat"), stretches(put_together)),
    "all_gather_copy_in": stretches(put_in),
    **dict.fromkeys(("arange", "linspace", "eye", "randperm"), host_memory),
}
