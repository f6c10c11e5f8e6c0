"""Elements picked and put by index, sorted, counted; bags of embeddings; images pooled and resampled."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import (
    ELEMENT_BYTES,
    Argument,
    Operand,
    Operation,
    words,
)
from prestep.workloads.operators.copies import copied
from prestep.workloads.operators.tensors import (
    argument,
    base,
    first,
    integers,
    launched,
    memory_format,
    stored,
    strides_of,
    tensor,
)

POOLS = words(
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d upsample_bicubic2d col2im grid_sampler_2d"
)
#: Of these a thread writes a pixel of all pictures and channels one after the other, if these lie in that order.
RESAMPLED = ("upsample_nearest2d", "upsample_bilinear2d")


def image(operation: Operation) -> tuple[Kernel, ...]:
    """(elements read, elements written)."""
    source = first(operation)
    result = operation.results[0] if operation.results else source
    layout = memory_format(source) if len(source.shape) == 4 else ""
    return launched(operation, (source.elements, result.elements), layout, source.dtype)


def patches(operation: Operation) -> tuple[Kernel, ...]:
    """im2col, a kernel for each picture: (pictures, channels times places, elements of a patch)."""
    source = first(operation)
    # Pairs for height and width, or as a profiler has them: one number after the other.
    numbers = [n for each in operation.arguments[1:] for n in integers(each)]
    numbers = numbers or [1, 1, 1, 1, 0, 0, 1, 1]  # none said: every pixel
    places = [
        (side + 2 * around - step * (size - 1) - 1) // stride + 1
        for side, (size, step, around, stride) in zip(
            source.shape[-2:], (numbers[:8:2], numbers[1:8:2]), strict=True
        )
    ]
    elements = prod(numbers[:2])
    shape = source.shape[0], source.shape[1] * prod(places), elements
    size = ELEMENT_BYTES[source.dtype] * float(source.elements + prod(shape))
    return launched(operation, shape, dtype=source.dtype, size=size)


def resampled(operation: Operation) -> tuple[Kernel, ...]:
    """(pictures times channels, pixels read of each, pixels written)."""
    source = first(operation)
    result = operation.results[0] if operation.results else source
    planes = source.shape[0] * source.shape[1]
    shape = planes, source.elements // planes, result.elements // planes
    return launched(operation, shape, memory_format(source), source.dtype)


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


def _rows(
    operation: Operation, picked: Operand, layout: str = "", behind: int = 0
) -> tuple[Kernel, ...]:
    """(rows, width) of what is picked or put; indices are read beside.

    `behind`: elements that one index takes together, 0 if not known.
    """
    width = behind or (picked.shape[-1] if len(picked.shape) > 1 else 1)
    indices = _indices(operation)
    element = ELEMENT_BYTES[picked.dtype]
    size = 2.0 * element * picked.elements + sum(map(stored, indices))
    shape = (picked.elements // max(1, width), width)
    name = KIND.get(base(operation), base(operation).removesuffix("_"))
    return launched(operation, shape, layout, picked.dtype, name, size=size)


def pick(operation: Operation) -> tuple[Kernel, ...]:
    """index, index_select, gather: as many as the result has; "rows" where gather's index is one for a whole row.

    "mask" where an index is one of truth values: places where it is true are found first.
    """
    picked = operation.results[0] if operation.results else first(operation)
    masked = any(each.dtype == "bool" for each in operation.operands[1:])
    behind = 0 if masked else _together(operation)
    return _rows(operation, picked, "mask" if masked else _by_rows(operation), behind)


def _together(operation: Operation) -> int:
    """Elements behind the dimension that is indexed, where each index takes a whole stretch; 0: it does not."""
    source, name = first(operation), base(operation)
    if name in ("index", "_unsafe_index"):
        indices = argument(operation, 1)
        whole = isinstance(indices, tuple) and indices[0] is not None
        return _behind(indices, source) if whole else 0
    at = argument(operation, 1)
    if name in ("index_select", "index_add", "index_copy") and at == 0:
        return prod(source.shape[1:])
    return 0


def _by_rows(operation: Operation) -> str:
    """ "rows" where all elements of a row have the same index: one that was expanded along the row."""
    wide = [each for each in _indices(operation) if len(each.shape) > 1]
    return "rows" if any(strides_of(each)[-1] == 0 for each in wide) else ""


def put(operation: Operation) -> tuple[Kernel, ...]:
    """index_put_, scatter_, index_add_: as many as the source has, in place.

    "add" where index_put sorts indices and adds; its rows that meet in one of the target take turns.
    """
    target = first(operation)
    others = [
        each
        for each in operation.operands[1:]
        if each.dtype == target.dtype and each.shape
    ]
    source = (others or _indices(operation)[:1] or [target])[-1]
    picked = Operand(target.dtype, source.shape)
    if argument(operation, 3, "accumulate") is not True:
        return _rows(operation, picked, _by_rows(operation), _together(operation))
    count = max((each.elements for each in _indices(operation)), default=1)
    places = target.elements * count // max(1, picked.elements)
    known = dict(operation.options).get("largest_group")
    even = -(-count // max(1, places))
    meeting = known if isinstance(known, int) else even
    width = _behind(argument(operation, 1), target)
    whole = Operand(target.dtype, (picked.elements // max(1, width), width))
    kernels = _rows(operation, whole, "add")
    return tuple(replace(each, shape=(*each.shape, meeting)) for each in kernels)


def _behind(indices: Argument, target: Operand) -> int:
    """Elements that lie behind the last dimension that is indexed: index_put adds each stretch of them as one."""
    given = indices if isinstance(indices, tuple) else (indices,)
    last = max((at for at, each in enumerate(given) if each is not None), default=0)
    return prod(target.shape[last + 1 :])


def _indices(operation: Operation) -> list[Operand]:
    return [each for each in operation.operands if each.dtype.startswith("int")]


def copied_then_put(operation: Operation) -> tuple[Kernel, ...]:
    """index_put, scatter, index_add: a copy of the target first."""
    target = first(operation)
    return (
        *copied(target, Operand(target.dtype, target.shape, device=target.device)),
        *put(operation),
    )


#: Elements of a choice that is long.
MANY = 1024


def order(operation: Operation) -> tuple[Kernel, ...]:
    """sort, topk and their like along a dimension: (lines, length); a long choice is sorted, too."""
    whole = first(operation)
    chosen = argument(operation, 1, "k") if base(operation) == "topk" else 0
    layout = "many" if isinstance(chosen, int) and chosen >= MANY else ""
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
        operation,
        (whole.elements // max(1, length), length),
        layout,
        dtype=whole.dtype,
    )


def elements(operation: Operation) -> tuple[Kernel, ...]:
    """nonzero, unique, histograms: by the elements looked at."""
    whole = first(operation)
    return launched(operation, (whole.elements,), dtype=whole.dtype)


#: The kernels of another name's operation.
KIND = {"_index_put_impl_": "index_put"}
PUTS = words(
    "index_put index_add index_copy scatter scatter_add scatter_reduce index_fill masked_scatter"
)
PICKS = words(
    "index index_select gather masked_select _unsafe_index take take_along_dim"
)
COUNTS = words(
    "nonzero _unique2 unique_dim unique_consecutive bincount histc searchsorted bucketize isin"
)
RULES = {
    "im2col": patches,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), bag),
    "_embedding_bag_backward": bag_gradient,
    **dict.fromkeys(PICKS, pick),
    **dict.fromkeys((f"{name}_" for name in PUTS), put),
    "_index_put_impl_": put,
    **dict.fromkeys(PUTS, copied_then_put),
    "_unsafe_index_put": copied_then_put,
    **dict.fromkeys(("sort", "topk", "argsort", "kthvalue", "msort"), order),
    **dict.fromkeys(COUNTS, elements),
    **dict.fromkeys((*POOLS, *(f"{name}_backward" for name in POOLS)), image),
    **dict.fromkeys(
        (*RESAMPLED, *(f"{name}_backward" for name in RESAMPLED)), resampled
    ),
}
