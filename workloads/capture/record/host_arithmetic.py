"""Operations on tensors in the host's memory: what a program computes itself, as offloaded optimizers do."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch

from prestep.workloads.capture.record import values
from prestep.workloads.capture.record.streams import Log

#: Bytes below which an operation's tensors lie in caches: its time is that of its calls.
LEAST = 1 << 16
#: Operators that write what they do not read, and those that give a tensor other memory.
WRITING = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_"}
PLACING = {"set_", "resize_"}
#: Extensions that a framework compiles for the host, with functions of parameters, gradients and states.
EXTENSIONS = ("cpu_adam", "cpu_adagrad", "cpu_lion")


def threads() -> int:
    """Threads of an operation, as the program's environment says; 0: as many as the host has cores."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    return int(stated) if stated.isdecimal() else 0


def write(function: Any, args: Any, options: Any, results: Any) -> None:
    """Writes down an operation that moves memory of the host."""
    if Log.current.open:
        _write(function._schema.name, _moved(function, args, options, results))


def _write(name: str, size: int) -> None:
    if size >= LEAST:
        Log.current.add("host_computes", name, size)


def _moved(function: Any, args: Any, options: Any, results: Any) -> int:
    """Bytes that an operator reads and writes; 0 where it makes a view, or new memory."""
    name = function._schema.name.partition("::")[2]
    if name in values.EMPTY or name in PLACING or _is_view(function):
        return 0
    given = values.tensors_in((args, options))
    written = [t for t in values.written(function, args, options) if t is not None]
    changed = set(map(id, written))
    returned = [t for t in values.tensors_in(results) if id(t) not in changed]
    passive = changed if name in WRITING else set()
    read = [tensor for tensor in given if id(tensor) not in passive]
    return _bytes((*read, *written, *returned))


def _is_view(function: Any) -> bool:
    returned = [result.alias_info for result in function._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returned)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in tensors
        if tensor.device.type == "cpu"
    )


def stand_in(name: str) -> Any:
    """A compiled extension of an optimizer on the host: its updates read all tensors and write all but the gradient."""

    def update(*arguments: Any, **options: Any) -> int:
        tensors = values.tensors_in((arguments, options))
        states = [tensor for place, tensor in enumerate(tensors) if place != 1]
        if Log.current.open:
            _write(f"{name}::update", _bytes((*tensors, *states)))
        return 0

    return _Extension(update)


class _Extension(SimpleNamespace):
    """A module of which every function is the same."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._function
