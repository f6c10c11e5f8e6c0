"""Operations over lists of tensors: foreach arithmetic and fused optimizers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from prestep.sim.graph.kernel import CHUNK, CHUNKS, TENSORS, Kernel
from prestep.workloads.operation import Argument, Operand, Operation, words
from prestep.workloads.operators.tensors import launched, on_gpu

#: Lists that a fused optimizer reads and writes, over the bytes of the parameters; gradients are read alone.
FUSED = ("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad")

#: Lists are launched one by one from where the longest chunk is so many times the mean tensor.
UNEVEN = 1.5


def _lists(operation: Operation) -> list[tuple[Operand, ...]]:
    values: tuple[Argument, ...] = (
        *operation.arguments,
        *(value for _, value in operation.options),
    )
    lists = [
        on_gpu(each for each in value if isinstance(each, Operand))
        for value in values
        if isinstance(value, tuple)
    ]
    return [each for each in lists if each]


def _amount(tensors: tuple[Operand, ...]) -> float:
    return float(sum(each.bytes for each in tensors))


def lists(operation: Operation) -> tuple[Kernel, ...]:
    """(tensors, elements) of the first list; the layout says how many lists are read, and whether types are mixed."""
    read = _lists(operation)
    if not read:
        return ()
    writes = on_gpu(operation.results) or read[0]
    size = sum(map(_amount, read)) + _amount(writes)
    return _over(operation, read, size, "_mixed" if _is_mixed(operation) else "")


def _is_mixed(operation: Operation) -> bool:
    """Whether a list meets a tensor of one number of another type: then every tensor is a launch of its own."""
    first = _lists(operation)[0][0]
    numbers = [each for each in operation.arguments if isinstance(each, Operand)]
    return any(number.dtype != first.dtype for number in numbers)


def optimizer(operation: Operation) -> tuple[Kernel, ...]:
    """A fused optimizer: its big lists read, all but the gradients written.

    Adam and AdamW are one kernel, which is told how weights decay (FusedAdamKernel.cu).
    """
    read = _lists(operation)
    if not read:
        return ()
    count = sum(each.elements for each in read[0])
    big = [each for each in read if sum(one.elements for one in each) == count]
    size = sum(map(_amount, big)) * 2 - (_amount(big[1]) if len(big) > 1 else 0.0)
    name = operation.name.replace("_fused_adam_", "_fused_adamw_")
    return _over(replace(operation, name=name), big, size)


def adamw(operation: Operation, tables: Collection[Operand]) -> tuple[Kernel, ...]:
    """Fused AdamW over tables of which most rows have no gradient, and over all others.

    Such rows take longer: their moments are zeros, and dividing those takes the slow path.
    """
    parameters = _lists(operation)[0]
    places = [at for at, each in enumerate(parameters) if each in tables][: len(tables)]
    others = [at for at in range(len(parameters)) if at not in places]
    slow, rest = (optimizer(_of(operation, part)) for part in (places, others))
    return tuple(replace(k, layout=f"{k.layout}_embedding") for k in slow) + rest


def _of(operation: Operation, places: Sequence[int]) -> Operation:
    """The same operation over these tensors of its lists."""
    count = max(len(each) for each in operation.arguments if isinstance(each, tuple))
    arguments = tuple(
        tuple(each[at] for at in places)
        if isinstance(each, tuple) and len(each) == count
        else each
        for each in operation.arguments
    )
    return replace(operation, arguments=arguments)


def cast(tensors: int, elements: int, wide: float) -> Kernel:
    """_foreach_copy_ of tensors, `wide` bytes in all, to 16 bits; as `lists` counts, what is written is read too."""
    size = wide + 4.0 * elements
    return Kernel("aten _foreach_copy_", (tensors, elements), "bf16", "2", size)


def _over(
    operation: Operation, read: list[tuple[Operand, ...]], size: float, way: str = ""
) -> tuple[Kernel, ...]:
    sizes = [each.elements for each in read[0]]
    dtype = ",".join(sorted({each.dtype for each in read[0]}))
    layout = ("" if len(read) == 1 else str(len(read))) + way
    shapes = [(len(sizes), sum(sizes))]
    if not way and len(sizes) * min(CHUNK, max(sizes)) > UNEVEN * sum(sizes):
        shapes = list(_launches(sizes, TENSORS[min(len(read), len(TENSORS)) - 1]))
    return tuple(
        kernel
        for shape in shapes
        for kernel in launched(
            operation, shape, layout, dtype, size=size * shape[1] / max(1, sum(sizes))
        )
    )


def _launches(sizes: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Launches of multi_tensor_apply over tensors of unlike sizes: (tensors, elements) of even lists that take as long.

    A launch takes as long as its longest chunk, so tensors count as many as have that length.
    """
    tensors = chunks = elements = longest = 0
    for size in sizes:
        for start in range(0, max(size, 1), CHUNK):
            part = min(CHUNK, size - start)
            chunks, elements, longest = chunks + 1, elements + part, max(longest, part)
            ends = start + CHUNK >= size
            tensors += ends
            if chunks == CHUNKS or (tensors == most and ends):
                yield max(1, round(elements / max(1, longest))), elements
                tensors = chunks = elements = longest = 0
    if elements:
        yield max(1, round(elements / longest)), elements


NAMES = words(
    "abs add addcdiv addcmul ceil clamp_max clamp_min copy cos div erf exp expm1 floor frac lerp lgamma "
    "log log10 log1p log2 max maximum minimum mul neg norm pow reciprocal round rsqrt sigmoid sign sin "
    "sqrt sub tan tanh trunc zero"
)
RULES = {
    **dict.fromkeys((f"_foreach_{name}" for name in NAMES), lists),
    **dict.fromkeys((f"_foreach_{name}_" for name in NAMES), lists),
    "_amp_foreach_non_finite_check_and_unscale_": lists,
    **dict.fromkeys((*FUSED, *(f"{name}_" for name in FUSED)), optimizer),
}
