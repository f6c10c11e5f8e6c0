"""What the families ask of an operation's tensors: bytes that move, types, how strides lie to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operation import ELEMENT_BYTES, Argument, Operand, Operation

#: Layouts of an operand beside a result, from the quickest to the slowest to read.
LAYOUTS = ("", "row", "column", "strided", "narrow", "transposed")
#: Elements of a row of the result up to which one block of threads writes several rows, and finds more of what it reads
#: across them in its cache (measured: rows of 64 take half as long as rows of 256 and more, rows of 128 four fifths).
NARROW = 96
#: Elements by which neighbours may lie apart and be read as quickly as rows with gaps: every second one of a row
#: (measured 0.40 T elements/s of bf16 and 0.30 of fp32; across rows 0.15).
APART = 2
#: Formats in which a GPU multiplies, by the names of elements: the signs of integers make no difference.
FORMATS = {
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "uint64": "int64",
    "uint32": "int32",
    "uint16": "int16",
    "uint8": "int8",
    "bool": "int8",
}


def base(operation: Operation) -> str:
    """Name without namespace and overload: "mm" of "aten.mm.default"."""
    return operation.name.split(".")[1]


def on_gpu(operands: Iterable[Operand]) -> tuple[Operand, ...]:
    """Those that a GPU holds and that have elements."""
    return tuple(each for each in operands if each.device != "cpu" and each.elements)


def read_by(operation: Operation) -> tuple[Operand, ...]:
    """Operands that it reads: not `out`, which it writes."""
    if not any(name == "out" for name, _ in operation.options):
        return operation.operands
    options = tuple(each for each in operation.options if each[0] != "out")
    return replace(operation, options=options).operands


def strides_of(operand: Operand) -> tuple[int, ...]:
    """Strides, also of a contiguous tensor."""
    return operand.strides or contiguous(operand.shape)


def in_order(shape: tuple[int, ...], strides: Sequence[int]) -> bool:
    """Whether elements lie in their order, as without strides; that of a dimension of one element does not count."""
    if not strides:
        return True
    steps = zip(shape, strides, contiguous(shape), strict=True)
    return all(one == other or size == 1 for size, one, other in steps)


@lru_cache(maxsize=4096)
def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def follows(operand: Operand, strides: tuple[int, ...]) -> bool:
    """Whether elements lie in memory as with these strides; dimensions of one element have no say."""
    three = zip(operand.shape, strides_of(operand), strides, strict=True)
    return all(here == there for size, here, there in three if size > 1)


def memory_format(image: Operand) -> str:
    """ "channels_last" where channels lie next to each other."""
    return "channels_last" if strides_of(image)[1] == 1 and image.shape[1] > 1 else ""


@lru_cache(maxsize=4096)
def view_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides of the same memory in another shape; None where that takes a copy (ATen/TensorUtils.cpp)."""
    found: list[int] = []
    at, step, whole, viewed = len(wanted) - 1, strides[-1] if strides else 1, 1, 1
    # Dimensions that follow each other in memory are one piece, which the new shape may cut as it likes.
    for d in reversed(range(len(shape))):
        whole *= shape[d]
        if d and (shape[d - 1] == 1 or strides[d - 1] == whole * step):
            continue
        while at >= 0 and (viewed < whole or wanted[at] == 1):
            found.append(viewed * step)
            viewed *= wanted[at]
            at -= 1
        if viewed != whole:
            return None
        step, whole, viewed = strides[d - 1] if d else 1, 1, 1
    return tuple(reversed(found)) if at < 0 else None


def stored(operand: Operand) -> int:
    """Bytes of the elements that differ in place: a broadcast dimension counts once."""
    pairs = zip(operand.shape, strides_of(operand), strict=True)
    return prod(size for size, stride in pairs if stride) * ELEMENT_BYTES[operand.dtype]


def moved(reads: Iterable[Operand], writes: Iterable[Operand]) -> float:
    """Bytes read and written, every element in place once."""
    return float(sum(map(stored, on_gpu((*reads, *writes)))))


def dense(operand: Operand) -> bool:
    """Whether its elements fill one stretch of memory, in whatever order."""
    return elements_in_place(operand) == operand.elements == span(operand)


def elements_in_place(operand: Operand) -> int:
    """Elements that differ in place."""
    return stored(operand) // ELEMENT_BYTES[operand.dtype]


def span(operand: Operand) -> int:
    """Elements from its first to its last one in memory."""
    pairs = zip(operand.shape, strides_of(operand), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs if size)


def layout_beside(operand: Operand, result: Operand) -> str:
    """How an operand lies when read in the order in which `result` is written: one of `LAYOUTS`."""
    if operand.elements <= 1:
        return ""
    lead = len(result.shape) - len(operand.shape)
    steps = (0,) * lead + tuple(
        0 if size == 1 else stride
        for size, stride in zip(operand.shape, strides_of(operand), strict=True)
    )
    order = sorted(
        (i for i, size in enumerate(result.shape) if size > 1),
        key=lambda i: strides_of(result)[i],
    )
    return _class([(result.shape[i], steps[i], strides_of(result)[i]) for i in order])


def _class(dimensions: list[tuple[int, int, int]]) -> str:
    """Of (size, step of the operand, step of the result), innermost first; sizes of 1 left out."""
    if all(step == own for _, step, own in dimensions):
        return ""
    innermost = dimensions[0][1]
    if innermost == 0:
        return "column"
    if any(step == 0 for _, step, _ in dimensions) and innermost == 1:
        return "row"
    if innermost <= APART:
        return "strided"
    return "narrow" if _row(dimensions) < NARROW else "transposed"


def _row(dimensions: list[tuple[int, int, int]]) -> int:
    """Elements of the innermost dimension, with those outside it that both tensors continue it by."""
    row, step, own = dimensions[0]
    for size, outer_step, outer_own in dimensions[1:]:
        if (outer_step, outer_own) != (step * row, own * row):
            break
        row *= size
    return row


def layout_of(reads: Iterable[Operand], result: Operand) -> str:
    """The slowest layout of all operands beside a result, which may have gaps itself."""
    own = "" if dense(result) else "strided"
    return max(
        (own, *(layout_beside(each, result) for each in reads)), key=LAYOUTS.index
    )


def types(operation: Operation) -> str:
    """Element types: one where all tensors share it, else those read, then ">" and those written."""
    reads = _distinct(each for each in on_gpu(read_by(operation)) if each.elements > 1)
    writes = _distinct(operation.results)
    if not reads or reads == writes:
        return ",".join(writes or reads)
    return f"{','.join(reads)}>{','.join(writes)}"


def _distinct(operands: Iterable[Operand]) -> list[str]:
    return sorted({each.dtype for each in operands})


def format_of(operand: Operand, operation: Operation) -> str:
    """The number format in which a product of it runs: "tf32" where the program allowed that for fp32."""
    if operand.dtype == "fp32" and dict(operation.options).get("allow_tf32"):
        return "tf32"
    return FORMATS.get(operand.dtype, operand.dtype)


def integers(argument: Argument) -> tuple[int, ...]:
    """A number or a list of numbers as a tuple; () for nothing."""
    if isinstance(argument, bool) or not isinstance(argument, int | tuple):
        return ()
    values = argument if isinstance(argument, tuple) else (argument,)
    return tuple(value for value in values if isinstance(value, int))


def argument(operation: Operation, at: int, name: str = "") -> Argument:
    """An argument by place or by name; None where the call left it out."""
    if at < len(operation.arguments):
        return operation.arguments[at]
    return dict(operation.options).get(name)


def tensor(operation: Operation, at: int) -> Operand | None:
    """The tensor at a place among the arguments."""
    value = argument(operation, at)
    return value if isinstance(value, Operand) else None


def first(operation: Operation) -> Operand:
    """The first tensor that an operation reads, else the first one that it returns."""
    return (*operation.operands, *operation.results)[0]


def launched(
    operation: Operation,
    shape: tuple[int, ...],
    layout: str = "",
    dtype: str = "",
    kind: str = "",
    flops: float = 0.0,
    size: float | None = None,
) -> tuple[Kernel, ...]:
    """One kernel named as the operation, with the bytes of all its tensors unless `size` says other ones."""
    if not on_gpu((*operation.operands, *operation.results)):
        return ()
    amount = moved(read_by(operation), operation.results) if size is None else size
    name = f"aten {kind or base(operation)}"
    whole = tuple(max(1, extent) for extent in shape)
    return (
        Kernel(name, whole, dtype or types(operation), layout, max(amount, 1.0), flops),
    )
