"""The older names of types of tensors on a GPU, as `torch.cuda.FloatTensor`, which programs call and convert to."""

from __future__ import annotations

from typing import Any

import torch

from prestep.workloads.operation import words

NAMES = words(
    "FloatTensor DoubleTensor HalfTensor BFloat16Tensor LongTensor IntTensor ShortTensor "
    "CharTensor ByteTensor BoolTensor"
)


class Typed(type):
    """Of such a name: tensors of its type on a GPU are its instances."""

    dtype: torch.dtype

    def __instancecheck__(cls, thing: Any) -> bool:
        tensor = isinstance(thing, torch.Tensor)
        return bool(tensor and thing.is_cuda and thing.dtype == cls.dtype)

    def __call__(cls, *given: Any) -> torch.Tensor:
        """Sizes make an empty tensor; a list or an array becomes one."""
        if all(isinstance(each, int) for each in given):
            return torch.empty(*given or (0,), dtype=cls.dtype, device="cuda")
        if isinstance(given[0], torch.Size):
            return torch.empty(given[0], dtype=cls.dtype, device="cuda")
        return torch.as_tensor(given[0], dtype=cls.dtype).to("cuda")


TYPES = {name: Typed(name, (), {"dtype": getattr(torch, name).dtype}) for name in NAMES}


def named(dtype: Any) -> Typed | None:
    """The type that a program converts to by such a name, or by the name as a text."""
    if isinstance(dtype, Typed):
        return dtype
    text = dtype if isinstance(dtype, str) else ""
    return TYPES.get(text.removeprefix("torch.cuda.")) if "cuda" in text else None


def install() -> None:
    """Lets programs make a type of the GPU the default of new tensors."""
    make_default = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        if (older := named(kind)) is None:
            make_default(kind)
        else:
            torch.set_default_dtype(older.dtype)
            torch.set_default_device("cuda")

    torch.set_default_tensor_type = set_default_tensor_type
