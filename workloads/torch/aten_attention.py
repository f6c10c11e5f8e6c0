"""PyTorch's fused attention on symbolic tensors, by backend: what it is called with, what it keeps and what it returns.

Sources: native_functions.yaml, tools/autograd/derivatives.yaml, aten/src/ATen/native/transformers/cuda.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prestep.workloads.operation import Operand, Operation
from prestep.workloads.operators.attention import fused
from prestep.workloads.operators.tensors import contiguous
from prestep.workloads.torch.aten import strides_of
from prestep.workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from prestep.sim.graph.kernel import Kernel

EFFICIENT = "efficient"  # memory-efficient attention
NUMBER = Operand("int64", ())


def ordered_as(like: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions lie in the order of another's; () where that is the usual one."""
    steps = strides_of(like)
    order = sorted(range(len(shape)), key=lambda at: (steps[at], -at))
    strides, step = [0] * len(shape), 1
    for at in order:
        strides[at] = step
        step *= shape[at]
    return () if tuple(strides) == contiguous(shape) else tuple(strides)


def heads_behind(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of (batch, heads, tokens, width) where heads lie behind tokens."""
    _, heads, tokens, width = shape
    return heads * tokens * width, width, heads * width, 1


@dataclass(frozen=True)
class Fused:
    """A call of causal ``scaled_dot_product_attention``, and that of its gradients.

    Attributes
    ----------
    backend
        "cudnn", "flash" or "efficient".
    q, k, v
        (batch, heads, tokens, width) each, as its kernel sees them.
    keeps
        The sums of rows are kept for a backward pass.
    """

    backend: str
    q: Operand
    k: Operand
    v: Operand
    keeps: bool

    @property
    def name(self) -> str:
        return f"aten._scaled_dot_product_{self.backend}_attention"

    @property
    def _random(self) -> tuple[Operand, Operand]:
        """Seed and offset of dropout."""
        if self.backend == "flash":
            return Operand("uint64", (2,)), Operand("uint64", ())
        return NUMBER, NUMBER

    @property
    def _sums(self) -> Operand:
        """A number for each row: cuDNN's with a dimension more, memory-efficient attention's in tiles of 32 rows."""
        *rows, tokens, _ = self.q.shape
        if self.backend == EFFICIENT:
            return Operand("fp32", (*rows, -(-tokens // 32) * 32))
        last = (1,) if self.backend == "cudnn" else ()
        return Operand("fp32", (*rows, tokens, *last))

    def forward(self, y: Operand) -> Operation:
        """With the output ``y``."""
        results = y, self._sums, *self._random
        if self.backend == "flash":
            debug = Operand(y.dtype, (0,))
            arguments = self.q, self.k, self.v, 0.0, True
            return Operation(f"{self.name}.default", arguments, (), (*results, debug))
        plain = self.q, self.k, self.v, None, self.keeps, 0.0, True
        return Operation(f"{self.name}.default", plain, (), results)

    def backward(self, g: Operand, y: Operand, grads: Sequence[Operand]) -> Operation:
        """With the gradient of the output ``y``, and those of queries, keys and values."""
        tensors, random = (self.q, self.k, self.v), self._random
        tokens = self.q.shape[2], self.k.shape[2]
        name = f"{self.name}_backward.default"
        kept = (y, self._sums)
        if self.backend == EFFICIENT:
            wanted = True, True, True, False
            plain = g, *tensors, None, *kept, *random, 0.0, wanted, True
            return Operation(name, plain, (), tuple(grads))
        if self.backend == "flash":
            packed = g, *tensors, *kept, None, None, *tokens, 0.0, True, *random
            return Operation(name, packed, (), tuple(grads))
        masked = g, *tensors, *kept, *random, None, None, None, *tokens, 0.0, True
        return Operation(name, masked, (), tuple(grads))

    def launch(self, t: Tape, operation: Operation, host: str = "") -> None:
        """Calls one of both."""
        if self.backend == "cudnn":
            t.cpu(t.launching)  # of the kernel that resets cuDNN's counter
        t.operate(operation, fused, host)

    def kernels(self, t: Tape, operation: Operation) -> tuple[Kernel, ...]:
        """What one of both launches."""
        return t.shared.kernels_of(operation, fused)

    def output_strides(self, q: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the output: as queries lie, but for memory-efficient attention."""
        if self.backend == EFFICIENT:
            return heads_behind(shape)
        return ordered_as(q, shape)

    def like(self, x: Tensor, grad: Tensor) -> Tensor:
        """A gradient of queries, keys or values, laid out as the kernel writes it."""
        grad.strides = self.output_strides(x, x.shape)
        return grad
