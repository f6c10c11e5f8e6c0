"""Low-rank adapters beside frozen projections, as NeMo and Megatron Bridge compose them.

A projection's output gets that of two thin products added, in 16 bits whatever the layers' format: the input, with
dropout, times A, times B, scaled. Where the projection's rows are spread over tensor-parallel ranks, so are those of A,
whose output is gathered, and of B. Where its columns are, so are A's, whose output is summed, and B's rows; its output
lies on the ranks by columns, and is brought into the form of the projection's (Megatron Bridge, peft/utils.py,
ParallelLinearAdapter; peft/lora_layers.py, LoRALinear). With sequence parallelism the norm's output is gathered once,
in 16 bits, for the projection and its adapter (return_layernorm_output_gathered).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workloads.job.adapter import Target
from workloads.megatron.elementwise import fused, unsaved
from workloads.megatron.gemm import gemm
from workloads.megatron.linear import column_linear, gradient_of, row_linear
from workloads.megatron.shard import Shard
from workloads.megatron.tensor_parallel import begin, finish
from workloads.megatron.weight_gradients import weight_gradient
from workloads.parallel.group import Group
from workloads.torch.modules import Module
from workloads.torch.tape import Tape, Tensor

PREFIX = "adapter."
# Bytes of an element: dropout reads, writes, and keeps a byte of mask; backward the same. Scaling reads and writes.
DROPPED, SCALED, ADDED = 5.0, 4.0, 6.0


@dataclass(frozen=True)
class Pair:
    """The two matrices of an adapter: into the rank, and out of it."""

    into: Tensor
    out: Tensor


def freeze(module: Module) -> None:
    """No weight has a gradient but those of adapters."""
    for p in module.parameters:
        p.requires_grad = p.name.startswith(PREFIX)


def pair_of(
    module: Module, t: Tape, target: Target, w: Tensor, s: Shard, row: bool
) -> Pair | None:
    """The adapter of a projection, registered with its module; ``row``: the projection's columns are spread."""
    if target not in s.adapter.places:
        return None
    (n, k), ranks, rank = w.shape, s.group.size, s.adapter.rank
    # Those that share a matrix have an equal part each; where the rank is smaller than the group, one column.
    into = (rank, k) if row else (max(1, rank // ranks), k)
    out = (n // ranks, rank) if row else (n, rank)
    name = PREFIX + target
    return Pair(
        module.add(t, *into, name=f"{name}.linear_in"),
        module.add(t, *out, name=f"{name}.linear_out"),
    )


def adapted_column(
    t: Tape, x: Tensor, w: Tensor, pair: Pair | None, s: Shard
) -> Tensor:
    """A projection whose rows are spread, with its adapter if it has one."""
    if pair is None:
        return column_linear(t, x, w, s)
    if s.gathers:
        x = _whole(t, x, s)
        y = column_linear(t, x, w, _alone(s))
    else:
        y = column_linear(t, x, w, s)
    z = _dropped(t, x, s)
    if s.group.size > 1 and not s.gathers:
        z = _moved(t, z, s, "", "all_reduce", z.shape)
    z = _product(t, z, pair.into, s)
    if s.group.size > 1:
        wide = (*z.shape[:-1], s.adapter.rank)
        z = _moved(t, z, s, "all_gather", "", wide)
        z = _moved(t, z, s, "", "all_reduce", wide)
    return _added(t, y, _scaled(t, _product(t, z, pair.out, s)))


def adapted_row(t: Tape, x: Tensor, w: Tensor, pair: Pair | None, s: Shard) -> Tensor:
    """A projection whose columns are spread, with its adapter if it has one."""
    if pair is None:
        return row_linear(t, x, w, s)
    y = row_linear(t, x, w, s)
    z = _product(t, _dropped(t, x, s), pair.into, s)
    if s.group.size > 1:
        # The sum of all ranks' parts; backward, of B's input gradients.
        z = _moved(t, z, s, "all_reduce", "all_reduce", z.shape)
    z = _product(t, z, pair.out, s)
    if s.group.size > 1:
        z = _as_output(t, z, y.shape, s)
    return _added(t, y, _scaled(t, z))


def _as_output(t: Tape, z: Tensor, shape: tuple[int, ...], s: Shard) -> Tensor:
    """Columns of an adapter's output to what the projection's has: parts of the sequence, or all of it everywhere."""
    if s.gathers and s.adapter.all_to_all:
        return _moved(t, z, s, "all_to_all", "all_to_all", shape)
    # Gathered; of that each rank takes a part of the sequence, and backward gathers the parts' gradients.
    return _moved(t, z, s, "all_gather", "all_gather" if s.gathers else "", shape)


def _alone(s: Shard) -> Shard:
    """A projection whose input is here already, and whose gradient is exchanged by whoever brought it."""
    one = Group("tp", s.group.ranks[:1], [s.group.ranks[:1]], 1)
    return replace(s, group=one, sequence=False)


def _whole(t: Tape, x: Tensor, s: Shard) -> Tensor:
    """All parts of the sequence; backward their gradients are summed and each rank gets its part."""
    shape = (x.shape[0] * s.group.size, *x.shape[1:])
    return _moved(t, x, s, "all_gather", "reduce_scatter", shape)


def _moved(
    t: Tape, x: Tensor, s: Shard, ahead: str, back: str, shape: tuple[int, ...]
) -> Tensor:
    """An exchange among tensor-parallel ranks, forward and backward ("": none), of the larger side's size."""
    before = x.shape
    y = t.empty(shape, x.itemsize) if ahead else Tensor(None, shape, x.itemsize)
    size = max(x.size, y.size)
    _exchange(t, ahead, size, s)

    def backward(g: Tensor) -> list[Tensor | None]:
        _exchange(t, back, size, s)
        return [t.empty(before, x_size)]

    x_size, history = x.itemsize, unsaved(x)
    del x
    return t.apply(y, [history], backward)


def _exchange(t: Tape, op: str, size: float, s: Shard) -> None:
    if op:
        begin(t, op, size, s.group)
        finish(t)


def _product(t: Tape, x: Tensor, w: Tensor, s: Shard) -> Tensor:
    """``x @ w.T`` in 16 bits, forward and backward."""
    numbers = replace(s.numbers, products="", overlap=False)
    (n, k), needs = w.shape, x.requires_grad
    rows = x.elements // k
    t.cpu("linear")
    gemm(t, rows, n, k, "nt", numbers)
    y = t.empty((*x.shape[:-1], n), x.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("linear_backward")
        grad = None
        if needs:
            gemm(t, rows, k, n, "nn", numbers)
            grad = t.empty(x.shape, x.itemsize)
        weight_gradient(t, n, k, rows, numbers, (g, x))
        return [grad, gradient_of(w)]

    return t.apply(y, [x, w], backward)


def _dropped(t: Tape, x: Tensor, s: Shard) -> Tensor:
    """Dropout of an adapter's input: a kernel of its own, whose mask is kept."""
    if not s.adapter.dropout:
        return x
    moved = DROPPED * x.elements
    return fused(t, [unsaved(x)], x.shape, moved, moved, x.elements)


def _scaled(t: Tape, x: Tensor) -> Tensor:
    """Times alpha over rank."""
    moved = SCALED * x.elements
    return fused(t, [unsaved(x)], x.shape, moved, moved)


def _added(t: Tape, x: Tensor, y: Tensor) -> Tensor:
    """The sum; both get its gradient as it is."""
    moved = ADDED * x.elements
    return fused(t, [unsaved(x), unsaved(y)], x.shape, moved, 0.0, kernels=(1, 0))
