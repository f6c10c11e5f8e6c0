"""Modes that calls of a program pass through: its own, such as selective checkpointing's, and one for devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from prestep.workloads.capture.record.stand_in import INSIDE, inward

DEVICE = torch.ops.prim.device.default


def install(recorder: TorchDispatchMode) -> None:
    """Programs' modes see operations alone: which device a tensor is on C++ asks of stand-ins only."""
    of_recording = (type(recorder), FakeTensorMode)
    answering: set[type] = set()
    enter = TorchDispatchMode.__enter__

    def answer_first(kind: Any) -> None:
        see = kind.__torch_dispatch__

        def __torch_dispatch__(
            mode: Any, asked: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if asked is DEVICE:
                return recorder.__torch_dispatch__(asked, types, args, kwargs)
            return see(mode, asked, types, args, kwargs)

        kind.__torch_dispatch__ = __torch_dispatch__

    def entered(mode: TorchDispatchMode) -> Any:
        kind = type(mode)
        if not issubclass(kind, (*of_recording, *answering)):
            answering.add(kind)
            answer_first(kind)
        return enter(mode)

    TorchDispatchMode.__enter__ = entered
    _follow_threads(recorder)


def _follow_threads(recorder: TorchDispatchMode) -> None:
    """Threads of the program work on the device, too, such as those that load weights; modes are a thread's own."""
    work: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def recorded(thread: threading.Thread) -> None:
        with Names(), recorder:
            work(thread)

    threading.Thread._bootstrap_inner = recorded  # type: ignore[attr-defined]


class Names(TorchFunctionMode):
    """Devices that programs name, before PyTorch's C++ sees them."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if options.get("device") is not None:
            options = {**options, "device": self._device(options["device"])}
        if getattr(options.get("generator"), "on_gpu", False):
            options = {**options, "generator": None}
        if "pin_memory" in options:  # memory of the host counts as pinned
            options = {**options, "pin_memory": False}
        rule = RULES.get(getattr(function, "__name__", ""))
        if rule is not None:
            return rule(function, args, options)
        return function(*args, **options)

    def _device(self, device: Any) -> Any:
        return (
            INSIDE
            if isinstance(device, int) and not isinstance(device, bool)
            else inward(device)
        )


def _to(function: Any, args: Any, options: Any) -> Any:
    where = args[1] if len(args) > 1 else None
    if isinstance(where, int) and not isinstance(where, bool):
        args = (args[0], INSIDE, *args[2:])
    return function(*(inward(argument) for argument in args), **options)


def _tensor(function: Any, args: Any, options: Any) -> Any:
    """`torch.tensor` of a list of tensors reads them where nobody can step in: here, before."""
    return function(*(_numbers(argument) for argument in args), **options)


def _numbers(values: Any) -> Any:
    if isinstance(values, (list, tuple)):
        return [_numbers(value) for value in values]
    return values.item() if isinstance(values, FakeTensor) else values


#: Functions that programs call with devices or values that PyTorch's C++ would not understand.
RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cuda": lambda function, args, options: args[0].to(INSIDE),
    "to": _to,
    "tensor": _tensor,
}
