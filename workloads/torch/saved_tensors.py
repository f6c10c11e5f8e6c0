"""Tensors that an autograd node saves: those which the function that is its backward holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType, MethodType

from prestep.workloads.torch.tape import Tensor


def tensors_of(value: object) -> list[Tensor]:
    """Tensors among arguments, or in what a function holds."""
    return list(_tensors(value))


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    inner: list[object] = []
    if isinstance(value, list | tuple):
        inner = [*value]
    elif isinstance(value, partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, MethodType):
        inner = [value.__self__, value.__func__]
    elif isinstance(value, FunctionType):
        inner = [cell.cell_contents for cell in value.__closure__ or ()]
    elif is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, each.name) for each in fields(value)]
    for each in inner:
        yield from _tensors(each)
