"""The older names of types of tensors on a GPU, as `torch.cuda.FloatTensor`, which programs call and convert to."""

from __future__ import annotations

from typing import Any

import torch

DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


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


TYPES = {name: Typed(name, (), {"dtype": dtype}) for name, dtype in DTYPES.items()}


def named(dtype: Any) -> Typed | None:
    """The type that a program converts to by such a name, or by the name as a text."""
    if isinstance(dtype, Typed):
        return dtype
    text = dtype if isinstance(dtype, str) else ""
    return TYPES.get(text.removeprefix("torch.cuda.")) if "cuda" in text else None
