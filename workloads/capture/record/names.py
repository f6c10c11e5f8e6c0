"""Devices as programs name them, before PyTorch's C++ sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from prestep.workloads.capture.record.stand_in import INSIDE, inward


class Names(TorchFunctionMode):
    """Devices that programs name, before PyTorch's C++ sees them."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if options.get("device") is not None:
            options = {**options, "device": self._device(options["device"])}
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
