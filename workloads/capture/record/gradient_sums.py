"""Whether autograd adds a gradient to an earlier one in its memory, as it does where nobody else has that.

PyTorch never does so where a mode looks on (`isTensorSubclassLike`), so the rule is applied here.
Source: torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`; what overlaps or has gaps is a view.
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
    dense = arguments[0].layout == torch.strided and not torch.is_grad_enabled()
    return dense and _holders(arguments) == holders_of_one()


def _holders(arguments: tuple[Any, ...]) -> tuple[int, int, int]:
    """How many have the first argument and its storage in C++, and the argument in Python."""
    storage = torch._C._storage_Use_Count(arguments[0].untyped_storage()._cdata)
    return arguments[0]._use_count(), storage, sys.getrefcount(arguments[0])


class _Witness(TorchDispatchMode):
    """Counts who has the first gradient of a sum."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is SUM:
            self.holders = _holders(args)
        return function(*args, **(kwargs or {}))


@functools.cache
def holders_of_one() -> tuple[int, int, int]:
    """The counts of a gradient that only autograd has: of one in a program where this is sure."""
    leaf = torch.ones(2, requires_grad=True)
    with _Witness() as witness, torch.enable_grad():
        value = leaf * 2
        (value.sin() * value.cos()).backward(torch.ones(2))
    return witness.holders
