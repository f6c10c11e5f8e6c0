"""Small tensors carry their values, so that a program that looks at them goes on as it would.

A tensor without one (made from weights or activations) answers with a stand-in: 1 for a number, no for a condition.
Every such answer is counted: the recording lists them as assumed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

LARGEST = 1 << 16  # elements of a tensor that is computed for real beside the fake one
#: Questions whose answer for ordinary numbers is no.
NEVER = ("isnan", "isinf")


def value_of(tensor: Any) -> torch.Tensor | None:
    """The real tensor beside a fake one, or a real tensor itself; None where nobody knows it."""
    if isinstance(tensor, FakeTensor):
        return getattr(tensor, "_value", None)
    return tensor


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor on the host in place of one whose values nobody knows."""
    if tensor.dtype == torch.bool:
        return torch.zeros(tuple(tensor.shape), dtype=torch.bool, device="cpu")
    return torch.ones(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")


def compute(function: Any, arguments: Any, options: Any, results: Any) -> None:
    """Gives results their values where all operands have theirs, and takes them away where one changed in place."""
    written = _written(function, arguments, options)
    tensors = [
        t
        for t in torch.utils._pytree.arg_tree_leaves(*arguments, **options)
        if isinstance(t, torch.Tensor)
    ]
    outputs = [
        t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, FakeTensor)
    ]
    name = function._schema.name.partition("::")[2]
    if name in NEVER and outputs and outputs[0].numel() <= LARGEST:
        outputs[0]._value = torch.zeros(
            tuple(outputs[0].shape), dtype=torch.bool, device="cpu"
        )
        return
    known = all(value_of(t) is not None and t.numel() <= LARGEST for t in tensors)
    small = all(t.numel() <= LARGEST for t in outputs)
    if not (known and small and outputs):
        for tensor in written:
            if isinstance(tensor, FakeTensor):
                tensor._value = None
        return
    real = torch.utils._pytree.tree_map(_on_host, (arguments, options))
    try:
        computed = function(*real[0], **real[1])
    except (RuntimeError, NotImplementedError, TypeError):
        return
    for output, value in zip(
        torch.utils._pytree.tree_leaves(results),
        torch.utils._pytree.tree_leaves(computed),
        strict=True,
    ):
        if (
            isinstance(output, FakeTensor)
            and isinstance(value, torch.Tensor)
            and output.shape == value.shape
        ):
            output._value = value


def _written(function: Any, arguments: Any, options: Any) -> list[Any]:
    tensors: list[Any] = []
    for place, parameter in enumerate(function._schema.arguments):
        if parameter.alias_info is None or not parameter.alias_info.is_write:
            continue
        value = (
            arguments[place] if place < len(arguments) else options.get(parameter.name)
        )
        tensors.extend(torch.utils._pytree.tree_leaves(value))
    return tensors


def _on_host(argument: Any) -> Any:
    if isinstance(argument, FakeTensor):
        return argument._value
    if isinstance(argument, torch.device):
        return torch.device("cpu")
    return argument
