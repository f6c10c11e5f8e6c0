"""Sizes of results that depend on data: computed where the data is known, assumed where nobody computes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from prestep.workloads.capture.record import sparse, values
from prestep.workloads.capture.record.launches import Refused
from prestep.workloads.capture.record.stand_in import INSIDE
from prestep.workloads.capture.record.values import value_of

#: What PyTorch raises where it does not know the size of a result.
UNKNOWN = (DynamicOutputShapeException, UnsupportedOperatorException)
#: Operators on lists that take a number for each tensor, in a tensor of the host or as numbers.
NUMBERED = {
    getattr(torch.ops.aten, name).Tensor: getattr(torch.ops.aten, name).ScalarList
    for name in (f"_foreach_addc{way}" for way in ("div", "div_", "mul", "mul_"))
}

Made = tuple[tuple[int, ...], torch.dtype]  # shape and type of a result


@dataclass(frozen=True)
class Assumption:
    """What a result's size is taken to be: in words, and as shapes and types of all results."""

    words: str
    shapes: Callable[..., Sequence[Made | torch.Tensor]]


def _selected(mask: torch.Tensor) -> int:
    """Elements that are not zero: counted where they are known, else half of all, or all of what differs."""
    value = value_of(mask)
    if value is None and values.is_unlike(mask):
        return mask.numel()
    return max(1, mask.numel() // 2) if value is None else int(value.count_nonzero())


def _nonzero(tensor: torch.Tensor) -> list[Made]:
    return [((_selected(tensor), tensor.dim()), torch.int64)]


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> list[Made]:
    return [((_selected(mask),), tensor.dtype)]


def _unique(
    tensor: torch.Tensor,
    _: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> list[Made]:
    inverse = tuple(tensor.shape) if return_inverse else (0,)
    counts = (tensor.numel(),) if return_counts else (0,)
    return [
        ((tensor.numel(),), tensor.dtype),
        (inverse, torch.int64),
        (counts, torch.int64),
    ]


def _unique_consecutive(
    tensor: torch.Tensor, return_inverse: bool = False, return_counts: bool = False
) -> list[Made]:
    return _unique(tensor, True, return_inverse, return_counts)


def _unique_dim(
    tensor: torch.Tensor,
    dim: int,
    _: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> list[Made]:
    length = tensor.shape[dim]
    return [
        (tuple(tensor.shape), tensor.dtype),
        ((length if return_inverse else 0,), torch.int64),
        ((length if return_counts else 0,), torch.int64),
    ]


def _bincount(
    _: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> list[Made]:
    dtype = torch.int64 if weights is None else torch.float64
    return [((max(1, minlength),), dtype)]


def _repeat_interleave(
    repeats: torch.Tensor, output_size: int | None = None
) -> list[Made]:
    return [((output_size or repeats.numel(),), torch.int64)]


def _index(tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> list[Made]:
    """A mask selects half of what it covers, as so many indices would."""
    whole = torch.empty(tuple(tensor.shape), device="meta")
    places = [place for index in indices for place in _places(index)]
    picked = torch.ops.aten.index.Tensor(whole, places)
    return [(tuple(picked.shape), tensor.dtype)]


def _places(index: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Indices without values in place of one; a mask over several dimensions is one for each."""
    if index is None:
        return [None]
    mask = _is_mask(index)
    shape = (_selected(index),) if mask else tuple(index.shape)
    place = torch.empty(shape, dtype=torch.int64, device="meta")
    return [place] * (index.dim() if mask else 1)


def _kept_boxes(boxes: torch.Tensor, *_: Any) -> list[Made]:
    return [((max(1, boxes.shape[0] // 2),), torch.int64)]


def _packed(
    sequences: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> list[Made | torch.Tensor]:
    """Rows of all sequences, and, on the host, how many of them reach each time; lengths lie there, too."""
    known = value_of(lengths)
    longest = sequences.shape[1 if batch_first else 0]
    sizes = [longest] * lengths.numel() if known is None else known.tolist()
    reaching = [sum(size > at for size in sizes) for at in range(max(sizes))]
    rows = (sum(reaching), *sequences.shape[2:])
    return [(rows, sequences.dtype), torch.tensor(reaching, device="cpu")]


ASSUMPTIONS = {
    "aten::nonzero": Assumption("half of the elements", _nonzero),
    "aten::masked_select": Assumption("half of the elements", _masked_select),
    "aten::index": Assumption("half of what a mask covers", _index),
    "aten::_unique2": Assumption("no two are alike", _unique),
    "aten::unique_consecutive": Assumption("no two are alike", _unique_consecutive),
    "aten::unique_dim": Assumption("no two are alike", _unique_dim),
    "aten::bincount": Assumption("the smallest length", _bincount),
    "aten::repeat_interleave": Assumption("each once", _repeat_interleave),
    "aten::_pack_padded_sequence": Assumption("as long as possible", _packed),
    "torchvision::nms": Assumption("half of the boxes", _kept_boxes),
}

#: Operators whose kernels for CUDA wait until the host knows how large a result is.
WAITING = {"aten::_coalesce", "aten::_sparse_sparse_matmul", *ASSUMPTIONS} - {
    "aten::index",
    "aten::_pack_padded_sequence",
}
MASKED = (
    "aten::index",
    "aten::index_put_",
    "aten::index_put",
    "aten::_index_put_impl_",
)


@functools.cache
def may_wait(function: Any) -> bool:
    """Whether the host waits in some calls of an operator."""
    return function._schema.name in {*WAITING, *MASKED}


def host_waits(function: Any, arguments: Any, options: Any) -> bool:
    """Whether the host waits for the GPU in an operator; a mask has to be counted, but not to set one value by it."""
    name = function._schema.name
    if name in WAITING:
        return options.get("output_size") is None
    if name not in MASKED or not any(_is_mask(index) for index in arguments[1]):
        return False
    one = len(arguments[1]) == 1 and len(arguments) > 2 and arguments[2].numel() == 1
    return not one


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def results(
    fake: FakeTensorMode,
    function: Any,
    arguments: Any,
    options: Any,
    unknown: RuntimeError,
) -> tuple[Any, str]:
    """What an operator returns that PyTorch has no shapes for (``unknown``), and what was assumed; "" for nothing.

    Sizes are computed where all data is known, assumed by the rule of the operator where there is one, else those
    that its kernel for the host gives for ones.
    """
    assumption = ASSUMPTIONS.get(function._schema.name)
    tensors = values.tensors_in((arguments, options))
    known = all(value_of(tensor) is not None for tensor in tensors)
    shapes = assumption.shapes(*arguments, **options) if assumption else ()
    on_host = any(isinstance(each, torch.Tensor) for each in shapes)
    if assumption is None or (known and not on_host):
        return _computed(fake, function, arguments, options, unknown), ""
    made = [
        entry if isinstance(entry, torch.Tensor) else _empty(fake, *entry)
        for entry in shapes
    ]
    if _decided_by_known(tensors):
        return made[0] if len(made) == 1 else tuple(made), ""
    name = function._schema.name.replace("::", ".")
    said = f"size of {name}: {assumption.words}"
    return made[0] if len(made) == 1 else tuple(made), said


def with_numbers(function: Any, arguments: Any) -> tuple[Any, Any]:
    """An operator that takes numbers in a tensor of the host as that which takes them as numbers."""
    if function not in NUMBERED:
        return function, arguments
    numbers = value_of(arguments[3])
    count = len(arguments[0])
    listed = [1.0] * count if numbers is None else numbers.expand(count).tolist()
    return NUMBERED[function], (*arguments[:3], listed)


def _decided_by_known(tensors: list[torch.Tensor]) -> bool:
    """Masks decide a size where an operator has any, else lengths and indices: whether these are known."""
    masks = [t for t in tensors if t.dtype == torch.bool]
    whole = [t for t in tensors if not t.is_floating_point()]
    return all(value_of(tensor) is not None for tensor in masks or whole or tensors)


def _empty(fake: FakeTensorMode, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    with fake:
        return torch.empty(shape, dtype=dtype, device=INSIDE)


def _computed(
    fake: FakeTensorMode,
    function: Any,
    arguments: Any,
    options: Any,
    unknown: RuntimeError,
) -> Any:
    """By the kernel for the host; results have values where all operands have."""
    tensors = values.tensors_in((arguments, options))
    known = all(value_of(tensor) is not None for tensor in tensors)
    places: dict[int, Any] = {}  # operands by the tensors on the host in their place

    def on_host(argument: Any) -> Any:
        lacks = isinstance(argument, torch.Tensor) and value_of(argument) is None
        there = values.stand_in(argument) if lacks else values.on_host(argument)
        places[id(there)] = argument
        return there

    def inside(result: Any) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        if id(result) in places:  # written in place
            return places[id(result)]
        if sparse.is_sparse(result):
            made = sparse.faked(fake, result, INSIDE)
        else:
            made = _empty(fake, tuple(result.shape), result.dtype)
        made._value = result if known else None
        return made

    tree_map = torch.utils._pytree.tree_map
    on_host_arguments, on_host_options = tree_map(on_host, (arguments, options))
    try:
        computed = function(*on_host_arguments, **on_host_options)
    except (RuntimeError, NotImplementedError) as error:
        if not isinstance(unknown, UNKNOWN):
            raise unknown from None  # a mistake of the program's
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise Refused(
            f"prestep capture: {function}: nothing says how large its results are: PyTorch has no shapes for it "
            f"without a GPU, and it does not run on the host ({reason}). Register them with torch.library.register_fake"
        ) from None
    return tree_map(inside, computed)
