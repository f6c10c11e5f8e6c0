"""Optimizers beside AdamW and SGD: what Lion, Adafactor and Adam with few bits launch."""

from __future__ import annotations

from collections.abc import Sequence

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.memory.account import Storage
from prestep.workloads.optimizer import Optimizer
from prestep.workloads.torch.tape import Tape, Tensor

#: Passes over a tensor by each kernel of Lion without a fused one (lion-pytorch, update_fn): the parameter decayed; the
#: moment copied, scaled, the gradient added, the sign taken; the parameter updated; the moment scaled and added to.
LION = (2, 2, 2, 3, 2, 3, 2, 3)
#: The same of Adafactor for a matrix (torch/optim/_adafactor.py, _single_tensor_adafactor): the parameter's norm, its
#: decay, norms of the gradient's rows and columns, the estimate as a product of both, divided, clamped, its root, times
#: the gradient, that update's norm, and the update.
ADAFACTOR = (1, 2, 1, 1, 1, 2, 2, 2, 3, 1, 3)
#: And for a vector: norm, decay, squares, their mean, a copy, clamped, its root, times the gradient, norm, update.
ADAFACTOR_VECTOR = (1, 2, 2, 3, 2, 2, 2, 3, 1, 3)
STATISTICS = (
    4  # small kernels on means of rows and columns: squared and divided, two each
)


def lion(
    t: Tape, stored: Sequence[Tensor], wide: int, moment: int, fused: bool
) -> None:
    """Lion: parameters and moments read and written, gradients read, at once or in eight kernels for each tensor."""
    if fused:
        n = sum(p.elements for p in stored)
        t.launch(Kernel("fused", (n,), bytes=float(n * (3 * wide + 2 * moment))))
        return
    for p in stored:
        _passes(t, p.elements, wide, LION)


def adafactor(t: Tape, stored: Sequence[Tensor], wide: int) -> None:
    """Adafactor, tensor by tensor; the host reads two norms of each before it goes on."""
    for p in stored:
        matrix = len(p.shape) > 1
        passes = ADAFACTOR if matrix else ADAFACTOR_VECTOR
        _passes(t, p.elements, wide, passes[:1])
        t.synchronize()
        if matrix:
            rows, columns = p.elements // p.shape[-1], p.shape[-1]
            for _ in range(STATISTICS):
                _passes(t, max(rows, columns), wide, (2,))
        estimate = Storage(t.memory, float(p.elements * wide), "workspace")
        _passes(t, p.elements, wide, passes[1:-1])
        t.synchronize()
        _passes(t, p.elements, wide, passes[-1:])
        del estimate


def adafactor_state(p: Tensor, wide: int) -> float:
    """Bytes of Adafactor's state: sums over rows and columns of a matrix, all squares of a vector."""
    if len(p.shape) < 2:
        return float(p.elements * wide)
    rows, columns = p.shape[-2:]
    return float(wide * (rows + columns) * (p.elements // (rows * columns)))


def quantized(
    t: Tape, stored: Sequence[Tensor], rule: Optimizer, wide: int, moment: int
) -> None:
    """Adam with quantized moments: for each tensor a compiled kernel that reads and writes them with their scales."""
    for p in stored:
        state = rule.moments * rule.bytes_of_moment(p.elements, moment)
        t.cpu("compiled_forward")
        moved = 3.0 * wide * p.elements + 2.0 * state
        t.launch(Kernel("fused", (p.elements,), bytes=moved))


def _passes(t: Tape, n: int, wide: int, passes: Sequence[int]) -> None:
    """Kernels over n elements, by how many values of each they read and write."""
    for count in passes:
        t.cpu("elementwise_nograd")
        t.launch(Kernel("fused", (n,), bytes=float(count * wide * n)))
