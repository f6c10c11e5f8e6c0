"""Tokens in another order: by expert on their way out, by sequence on their way back (moe_utils.py)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.megatron.elementwise import fused, unsaved
from prestep.workloads.torch.tape import Tape, Tensor

OPERATORS = 3  # that the host issues for a permutation without fusion


def reorder(
    t: Tape, x: Tensor, shape: tuple[int, ...], moved: float, kernels: int
) -> Tensor:
    """Rows put in another order by kernels that read or write ``moved`` bytes together, forward and backward."""
    return fused(t, [unsaved(x)], shape, moved, moved, kernels=(kernels, kernels))


def select(t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows selected by their index, a copy for each of their experts; gradients are added by rows (index_add)."""
    copies, tokens = prod(shape), x.elements
    forward = [Kernel("fused", (copies,), bytes=4.0 * copies)]
    backward = [
        Kernel("fill", (tokens,), bytes=2.0 * tokens),
        Kernel("index_add", (copies,)),
    ]
    return _permuted(t, x, shape, forward, backward)


def scatter(t: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows weighted and scattered with atomic additions; gradients are gathered element by element."""
    copies, tokens = x.elements, prod(shape)
    forward = [
        Kernel("fused", (copies,), bytes=4.0 * copies),
        Kernel("fill", (tokens,), bytes=2.0 * tokens),
        Kernel("scatter_add", (copies,)),
    ]
    backward = [
        Kernel("gather", (copies,)),
        # Gradients of rows and of their weights.
        Kernel("fused", (copies,), bytes=8.0 * copies),
    ]
    return _permuted(t, x, shape, forward, backward)


def _permuted(
    t: Tape,
    x: Tensor,
    shape: tuple[int, ...],
    forward: Sequence[Kernel],
    backward: Sequence[Kernel],
) -> Tensor:
    """Rows moved by PyTorch's operators; they are saved for the gradients of their weights."""
    t.cpu("fused", OPERATORS)
    y = t.empty(shape, x.itemsize)
    for kernel in forward:
        t.launch(kernel)

    def back(g: Tensor) -> list[Tensor | None]:
        t.cpu("fused_backward", OPERATORS)
        for kernel in backward:
            t.launch(kernel)
        return [t.empty(x.shape, x.itemsize)]

    return t.apply(y, [unsaved(x)], back)
