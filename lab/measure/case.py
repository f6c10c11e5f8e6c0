"""A case: an operation with its operands, made where it is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Call = Callable[[], Any]
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp64": torch.float64,
    "fp8": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "int64": torch.int64,
    "int32": torch.int32,
    "bool": torch.bool,
    "complex64": torch.complex64,
}


@dataclass(frozen=True)
class Tensors:
    """Makes operands with random contents: products of zeros take less power and run faster than a program's."""

    device: str

    def normal(self, *shape: int, dtype: str = "bf16", grad: bool = False) -> Any:
        kind = DTYPES[dtype]
        if dtype in ("int64", "int32", "bool"):
            return self.below(2, *shape).to(kind)
        if dtype.startswith("fp8"):
            return torch.randn(shape, device=self.device, dtype=torch.bfloat16).to(kind)
        return torch.randn(shape, device=self.device, dtype=kind).requires_grad_(grad)

    def positive(self, *shape: int, dtype: str = "bf16") -> Any:
        return torch.rand(shape, device=self.device, dtype=DTYPES[dtype]) + 0.5

    def below(self, high: int, *shape: int) -> Any:
        return torch.randint(0, high, shape, device=self.device)

    def skewed(self, high: int, *shape: int) -> Any:
        """Few values often, many seldom, as words in a text."""
        return (torch.rand(shape, device=self.device) ** 4 * high).long()

    def mask(self, *shape: int) -> Any:
        return torch.rand(shape, device=self.device) < 0.5


@dataclass(frozen=True)
class Case:
    """One operation to time.

    Attributes
    ----------
    size : tuple of int
        The numbers that decide its time; cases of a family with one size are all fitted to, or all held out.
    setting : dict
        What else distinguishes it: dtype, layout, backend, options.
    make : callable
        Makes the operands and answers with the call.
    way : str
        "fwd" or "bwd" (through autograd, which keeps the graph).
    round : int
        0 is timed first; what a short run leaves out has the highest.
    graph : bool
        Whether it is also timed in a CUDA graph, as one of sixteen calls in a row.
    """

    family: str
    op: str
    size: tuple[int, ...]
    make: Callable[[Tensors], Call]
    setting: dict[str, Any] = field(default_factory=dict)
    way: str = "fwd"
    round: int = 0
    graph: bool = False


Build = Callable[[Tensors], tuple[Call, Sequence[Any]]]


def both(
    family: str,
    op: str,
    size: tuple[int, ...],
    build: Build,
    setting: dict[str, Any],
    round: int = 0,
) -> list[Case]:
    """Forward with a graph for autograd, and backward; `build` answers with the call and what needs gradients."""

    def backward(on: Tensors) -> Call:
        call, inputs = build(on)
        out = call()
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)

    return [
        Case(family, op, size, lambda on: build(on)[0], setting, "fwd", round),
        Case(family, op, size, backward, setting, "bwd", round),
    ]
