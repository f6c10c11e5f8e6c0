"""Whether autograd adds a gradient to an earlier one in its memory, as it does where nobody else has that.

PyTorch never does so where a mode looks on (`isTensorSubclassLike`), so the rule is applied here.
Source: torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SUM = torch.ops.aten.add.Tensor


def in_place(arguments: tuple[Any, ...]) -> bool:
    """Whether the first argument of a sum within backward is a gradient that nobody but autograd has."""
    first = arguments[0]
    return (
        not torch.is_grad_enabled()
        and isinstance(first, torch.Tensor)
        and first.layout == torch.strided
        and _holders(first) == holders_of_one()
        and _is_dense(first)
    )


def _holders(tensor: Any) -> tuple[int, int, int]:
    """How many have a tensor and its storage in C++, and the tensor in Python."""
    storage = tensor.untyped_storage()._cdata
    return (
        tensor._use_count(),
        torch._C._storage_Use_Count(storage),
        sys.getrefcount(tensor),
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill its part of the storage, each once."""
    count = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != count:
            return False
        count *= size
    return True


class _Witness(TorchDispatchMode):
    """Counts who has the first gradient of a sum."""

    holders = (0, 0, 0)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is SUM:
            self.count(args)
        return function(*args, **(kwargs or {}))

    def count(self, arguments: tuple[Any, ...]) -> None:
        """Counts with as many references as `in_place` has."""
        first = arguments[0]
        self.holders = _holders(first)


@functools.cache
def holders_of_one() -> tuple[int, int, int]:
    """The counts of a gradient that only autograd has: of one in a program where this is sure."""
    leaf = torch.ones(2, requires_grad=True)
    with _Witness() as witness, torch.enable_grad():
        value = leaf * 2
        (value.sin() * value.cos()).backward(torch.ones(2))
    return witness.holders
