"""`torch.device(0)` is a CUDA device, as it would be on a machine that has one: PyTorch would take the one inside."""

from __future__ import annotations

import copyreg
from typing import Any

import torch
from torch._library import infer_schema

_Device = torch.device


class _Kind(type):
    """The class of what stands in `torch.device`'s place: it makes PyTorch's own devices, and knows them."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _Device)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        number = arguments[0] if len(arguments) == 1 else None
        if isinstance(number, int) and not isinstance(number, bool):
            return _Device("cuda", number)
        return _Device(*arguments, **options)


def install() -> None:
    device = _Kind("device", (), {"__module__": "torch", "__doc__": _Device.__doc__})
    torch.device = device
    infer_schema.SUPPORTED_PARAM_TYPES[device] = "Device"
    copyreg.pickle(_Device, lambda made: (device, (str(made),)))
