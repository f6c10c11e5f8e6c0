"""Operations that were done before to tensors of the same shapes: what they gave says what they give now.

PyTorch takes half a millisecond to find the shapes of a result; a step of a model repeats a few hundred operations tens
of thousands of times. Operations whose result depends on more than shapes are never kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from prestep.workloads.capture.record import describe, values

BUILT_IN = ("aten", "prims")
REAL = (torch.Tensor, torch.nn.Parameter)
#: Arguments that are equal only if they are the same.
PLAIN = (
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(str, bool, int, float, type(None)),
)
Shape = tuple[int, ...]
Make = Callable[[FakeTensorMode, list[Any]], Any]


class Form(NamedTuple):
    """Shape, strides in elements, type and device of a tensor."""

    shape: Shape
    strides: Shape
    dtype: torch.dtype
    device: torch.device


class _Unlike(Exception):
    """An argument whose description says too little."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation with what decides the shapes of its result: `key`; `tensors`: its operands, in order."""

    key: Hashable
    tensors: list[Any]


# -- how a result is made again, from the mode and the operands of a call: partial functions of what is known ---------
def _operand(place: int, _: FakeTensorMode, tensors: list[Any]) -> Any:
    """A result that is an operand, by its place: an operation in place returns it."""
    return tensors[place]


def _view(form: Form, offset: int, fake: FakeTensorMode, tensors: list[Any]) -> Any:
    """A result that lies in the memory of the first operand."""
    empty = torch.empty((0,), dtype=form.dtype, device="meta")
    empty.set_(tensors[0].untyped_storage(), offset, form.shape, form.strides)
    return FakeTensor(fake, empty, form.device)


def _new(form: Form, fake: FakeTensorMode, _: list[Any]) -> Any:
    """A result in memory of its own."""
    empty = torch.empty_strided(
        form.shape, form.strides, dtype=form.dtype, device="meta"
    )
    return FakeTensor(fake, empty, form.device)


def _constant(value: Any, *_: Any) -> Any:
    """A result that is no tensor."""
    return value


def _several(kind: type, parts: tuple[Make, ...], *call: Any) -> Any:
    """A list or tuple of results."""
    return kind([part(*call) for part in parts])


@dataclass(slots=True)
class Entry:
    """What is known of a call.

    Attributes
    ----------
    result
        How its result is made.
    written
        Places of the operands that it writes to.
    valued
        Whether its result may carry values: its tensors are small, or it asks a question with an answer of its own.
    number
        Of its description in the table of operations; None before it was written down.
    """

    result: Make
    written: tuple[int, ...]
    valued: bool
    number: int | None = field(default=None)


class Memo:
    """Calls that were made before, by their keys."""

    def __init__(self, fake: FakeTensorMode) -> None:
        self.fake = fake
        self.entries: dict[Hashable, Entry] = {}

    def find(self, call: Call | None) -> Entry | None:
        return None if call is None else self.entries.get(call.key)

    def results(self, entry: Entry, tensors: list[Any]) -> Any:
        return entry.result(self.fake, tensors)

    def keep(
        self, call: Call | None, function: Any, args: Any, options: Any, results: Any
    ) -> Entry | None:
        """Remembers what a call gave, unless more than shapes decided it, or it changed the shape of an operand."""
        after = call_of(function, args, options)
        if call is None or after is None or after.key != call.key:
            return None
        try:
            result = _Results(call.tensors, _may_view(function)).read(results)
        except _Unlike:
            return None
        written = tuple(_places_written(function, args, options))
        valued = _may_have_values(function, call.tensors, results)
        entry = self.entries[call.key] = Entry(result, written, valued)
        return entry


def call_of(function: Any, args: Any, options: Any) -> Call | None:
    """The call as a key; None for one that is not to be kept. Asked for while no `TorchFunctionMode` listens."""
    if not _depends_on_shapes(function) or torch.is_inference_mode_enabled():
        return None
    tensors: list[Any] = []
    try:
        given = _key((args, tuple(options.items())), tensors, _may_view(function))
    except _Unlike:
        return None
    return Call((function, given, _rounding(function), _repeats(tensors)), tensors)


def _repeats(tensors: list[Any]) -> tuple[int, ...]:
    """Which operands are the same tensor; () where all are different."""
    places: dict[int, int] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(id(tensor), place)
    if len(places) == len(tensors):
        return ()
    return tuple(places[id(tensor)] for tensor in tensors)


@functools.cache
def _depends_on_shapes(function: Any) -> bool:
    tags = function.tags
    unlike = (
        torch.Tag.inplace_view,
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
    )
    return function.namespace in BUILT_IN and not any(tag in tags for tag in unlike)


@functools.cache
def _may_view(function: Any) -> bool:
    """Whether a result may lie in the memory of the first operand."""
    return function.is_view or function is torch.ops.aten._unsafe_view.default


@functools.cache
def _is_product(function: Any) -> bool:
    name = function._schema.name.partition("::")[2]
    return name in describe.PRODUCTS or name in describe.CONVOLUTIONS


def _rounding(function: Any) -> tuple[bool, ...]:
    """Whether the program lets products of fp32 be rounded now, which their description has."""
    if not _is_product(function):
        return ()
    return describe.products_in_tf32(), describe.convolutions_in_tf32()


def _key(value: Any, tensors: list[Any], with_offset: bool) -> Hashable:
    kind = type(value)
    if kind is FakeTensor:
        return _key_of_fake(value, tensors, with_offset)
    if kind in PLAIN:
        return kind, value
    if kind is tuple or kind is list or kind is torch.Size:
        return tuple([_key(each, tensors, with_offset) for each in value])
    if kind in REAL and value.device.type == "cpu" and value.layout is torch.strided:
        tensors.append(value)
        return value.shape, value.stride(), value.dtype
    raise _Unlike


def _key_of_fake(tensor: FakeTensor, tensors: list[Any], with_offset: bool) -> Hashable:
    if tensor.constant is not None or tensor.layout is not torch.strided:
        raise _Unlike
    tensors.append(tensor)
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.fake_device,
        torch._C._dispatch_keys(tensor).raw_repr(),
        tensor.storage_offset() if with_offset else 0,
    )


class _Results:
    """Reads how the results of a call follow from its operands."""

    def __init__(self, operands: list[Any], may_view: bool) -> None:
        self.operands = {id(t): place for place, t in enumerate(operands)}
        self.memories = [t.untyped_storage()._cdata for t in operands]
        self.may_view = may_view
        self.own: set[int] = set()

    def read(self, results: Any) -> Make:
        kind = type(results)
        if kind is list or kind is tuple:
            return partial(_several, kind, tuple(self.read(each) for each in results))
        if kind is FakeTensor:
            return self._tensor(results)
        if kind in (bool, int, float, type(None)):
            return partial(_constant, results)
        raise _Unlike

    def _tensor(self, tensor: FakeTensor) -> Make:
        if id(tensor) in self.operands:
            return partial(_operand, self.operands[id(tensor)])
        if tensor.constant is not None or not _is_dense(tensor):
            raise _Unlike
        shape, strides = tuple(tensor.shape), tensor.stride()
        form = Form(shape, strides, tensor.dtype, tensor.fake_device)
        storage = tensor.untyped_storage()
        if storage._cdata in self.memories:
            if not self.may_view or storage._cdata != self.memories[0]:
                raise _Unlike
            return partial(_view, form, tensor.storage_offset())
        fits = storage.nbytes() == _span(shape, strides) * tensor.element_size()
        if not fits or tensor.storage_offset() or storage._cdata in self.own:
            raise _Unlike
        self.own.add(storage._cdata)
        return partial(_new, form)


def _is_dense(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    return plain and not tensor.is_conj() and not tensor.is_neg()


def _span(shape: Shape, strides: Shape) -> int:
    """Elements from the first to the last."""
    if 0 in shape:
        return 0
    pairs = zip(shape, strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def _places_written(function: Any, args: Any, options: Any) -> Iterator[int]:
    """Places of the operands that an operation writes to, among all of its operands."""
    parameters = {each.name: each for each in function._schema.arguments}
    named = ((parameters[name], value) for name, value in options.items())
    place = 0
    for parameter, value in (*zip(parameters.values(), args, strict=False), *named):
        count = len(values.tensors_in(value))
        if parameter.alias_info is not None and parameter.alias_info.is_write:
            yield from range(place, place + count)
        place += count


def _may_have_values(function: Any, tensors: list[Any], results: Any) -> bool:
    name = function._schema.name.partition("::")[2]
    questions = (*values.NEVER, *values.ALWAYS, *values.COMPARISONS, values.OVERFLOW)
    asks = name in questions
    chooses = values.name_of(function) in values.CHOOSING
    involved = (*tensors, *values.tensors_in(results))
    return asks or chooses or all(map(values.is_small, involved))
