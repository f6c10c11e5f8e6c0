"""Whose a storage on the device is: weights, their gradients, an optimizer's state; and which module asked for it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

#: Attributes of weights that hold gradients: autograd's, and those of Megatron's buffers.
GRADIENTS = ("grad", "main_grad")
CALLS = (torch.nn.Module._call_impl.__code__,)


def modules() -> list[torch.nn.Module]:
    """All that there are: no hook has to be on them, which the program would run."""
    return [
        thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)
    ]


def paths(found: Iterable[torch.nn.Module]) -> dict[int, str]:
    """Names of modules by their ids, from the outermost module that has them."""
    found = list(found)
    inner = {id(child) for module in found for child in module.children()}
    named: dict[int, str] = {}
    for module in found:
        if id(module) not in inner:
            for name, each in module.named_modules():
                named.setdefault(id(each), name)
    return named


def kinds(
    found: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[tuple[str, torch.Tensor]]:
    """What is kept between steps, as an owner of memory and a tensor; the first of a storage counts."""
    for module in found:
        for weight in torch.nn.Module.parameters(module, recurse=False):
            yield "parameters", weight
            yield from _gradients(weight)
        for buffer in torch.nn.Module.buffers(module, recurse=False):
            yield "buffers", buffer
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                yield "optimizer", weight
                yield from _gradients(weight)
        yield from _states(optimizer.state)


def _gradients(weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    for name in GRADIENTS:
        gradient = getattr(weight, name, None)
        if isinstance(gradient, torch.Tensor):
            yield "gradients", gradient


def _states(states: Mapping[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for state in torch.utils._pytree.tree_leaves(list(states.values())):
        if isinstance(state, torch.Tensor):
            yield "optimizer", state


def asking() -> int:
    """The id of the innermost module whose call runs now; 0 outside of any."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code in CALLS:
            return id(frame.f_locals["self"])
        frame = frame.f_back  # type: ignore[assignment]
    return 0
