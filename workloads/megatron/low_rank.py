"""Parts of low-rank adapters: their two matrices, thin products, and elementwise work around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from prestep.workloads.megatron.elementwise import fused, pass_over, unsaved
from prestep.workloads.megatron.gemm import gemm
from prestep.workloads.megatron.linear import gradient_of
from prestep.workloads.megatron.shard import Shard
from prestep.workloads.megatron.tensor_parallel import begin, finish
from prestep.workloads.megatron.weight_gradients import weight_gradient
from prestep.workloads.torch.tape import Tape, Tensor

# Bytes of an element: dropout reads, writes, and keeps a byte of mask; backward the same. Scaling reads and writes. A
# sum reads both and writes; where it is made by the kernel that reads it, that reads the second.
DROPPED, SCALED, ADDED, ADDED_BY_READER = 5.0, 4.0, 6.0, 2.0
# The same by Transformer Engine's kernel, whose mask is bits.
DROPPED_BITS = 4 + 1 / 8
REDUCING = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True)
class Pair:
    """The two matrices of an adapter: into the rank, and out of it."""

    into: Tensor
    out: Tensor


def matrices(
    n: int, k: int, s: Shard, row: bool
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of an adapter's matrices on a rank, beside its n x k of a projection; ``row``: the columns are spread.

    Those that share a matrix have an equal part each; where the rank is smaller than the group, one column.
    """
    ranks, rank = s.group.size, s.adapter.rank
    part = max(1, rank // ranks)
    if not row:
        return (part, k), (n, rank)
    return (rank, k), (n, part) if s.dtensors else (n // ranks, rank)


def product(t: Tape, x: Tensor, w: Tensor, s: Shard) -> Tensor:
    """``x @ w.T`` in 16 bits, forward and backward."""
    numbers = replace(s.numbers, products="", overlap=False)
    (n, k), needs = w.shape, x.requires_grad
    rows = x.elements // k
    t.cpu("linear")
    on_host(t, s, "dtensor_linear")
    gemm(t, rows, n, k, "nt", numbers)
    y = t.empty((*x.shape[:-1], n), x.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("linear_backward")
        on_host(t, s, "dtensor_backward")
        grad = None
        if needs:
            gemm(t, rows, k, n, "nn", numbers)
            grad = t.empty(x.shape, x.itemsize)
        weight_gradient(t, n, k, rows, numbers, (g, x))
        return [grad, gradient_of(w)]

    return t.apply(y, [x, w], backward)


def dropped(t: Tape, x: Tensor, s: Shard, position: Literal["pre", "post"]) -> Tensor:
    """Dropout ahead of an adapter or behind it, as asked for: a kernel of its own, whose mask is kept."""
    if not s.adapter.dropout or s.adapter.dropout_position != position:
        return x
    bits = s.options.use_transformer_engine_op_fuser
    n = (DROPPED_BITS if bits else DROPPED) * x.elements
    return fused(t, [unsaved(x)], x.shape, n, n, x.elements / (8 if bits else 1))


def in_product(s: Shard) -> bool:
    """Whether the last product scales and adds (Transformer Engine's operation fuser, ForwardLinearScaleAdd).

    What comes between them, dropout, prevents it.
    """
    between = s.adapter.dropout and s.adapter.dropout_position == "post"
    return s.options.use_transformer_engine_op_fuser and not between


def scaled(t: Tape, x: Tensor, s: Shard, place: Literal["output", "inner"]) -> Tensor:
    """Times alpha over rank, where an adapter does that here."""
    if s.adapter.scaled != place or (place == "output" and in_product(s)):
        return x
    n = SCALED * x.elements
    return fused(t, [unsaved(x)], x.shape, n, n)


def added(t: Tape, x: Tensor, y: Tensor, s: Shard) -> Tensor:
    """The sum; both get its gradient as it is."""
    inputs = [unsaved(x), unsaved(y)]
    if s.compiled or in_product(s):
        return fused(
            t, inputs, x.shape, ADDED_BY_READER * x.elements, 0.0, kernels=(1, 0)
        )
    return fused(t, inputs, x.shape, ADDED * x.elements, 0.0, kernels=(1, 0))


def moved(
    t: Tape, x: Tensor, s: Shard, ahead: str, back: str, shape: tuple[int, ...]
) -> Tensor:
    """An exchange among tensor-parallel ranks, forward and backward ("": none), of the larger side's size."""
    before, itemsize = x.shape, x.itemsize
    y = t.empty(shape, itemsize) if ahead else Tensor(x.storage, shape, itemsize)
    size = max(x.size, y.size)
    exchange(t, ahead, size, s)

    def backward(g: Tensor) -> list[Tensor | None]:
        on_host(t, s, "dtensor_backward")
        exchange(t, back, size, s)
        return [t.empty(before, itemsize)]

    history = unsaved(x)
    del x
    return t.apply(y, [history], backward)


def on_host(t: Tape, s: Shard, name: str) -> None:
    """What the host spends on an operator of DTensors; compiled code calls local ones."""
    if s.dtensors and not s.compiled:
        t.cpu(name)


def exchange(t: Tape, op: str, size: float, s: Shard) -> None:
    """A collective of the tensor-parallel group that is waited for; DTensor's reductions work on a copy."""
    if not op:
        return
    if s.dtensors and op in REDUCING:
        pass_over(t, int(size) // 2, 2 * size)
    begin(t, op, size, s.group)
    finish(t)
