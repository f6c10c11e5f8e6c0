"""Low-rank adapters beside frozen projections, as NeMo, Megatron Bridge and NeMo Automodel compose them.

A projection's output gets that of two thin products added, in 16 bits whatever the layers' format: the input, with
dropout, times A, times B, scaled. What ranks exchange on the way depends on who composes them:

* Megatron Bridge (peft/utils.py, ParallelLinearAdapter; peft/lora_layers.py, LoRALinear). Where the projection's rows
  are spread over tensor-parallel ranks, so are those of A, whose output is gathered, and of B. Where its columns are,
  so are A's, whose output is summed, and B's rows; its output lies on the ranks by columns, and is brought into the
  form of the projection's. With sequence parallelism the norm's output is gathered once, in 16 bits, for the
  projection and its adapter (return_layernorm_output_gathered).
* PyTorch's DTensors (nemo_automodel/components, distributed/parallel_styles.py, _peft/lora.py). Gradients that the
  projection and its adapter give their input are added first, and summed over ranks once; so are outputs of a row. A
  column's thin output is gathered, a row's reduce-scattered. Functional collectives that reduce work on a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from prestep.workloads.exchanges.tensor import exchange
from prestep.workloads.megatron.elementwise import fused, pass_over, unsaved
from prestep.workloads.megatron.gemm import gemm, weight_gradient
from prestep.workloads.megatron.linear import column_linear, gradient_of, row_linear
from prestep.workloads.megatron.shard import Shard, whole
from prestep.workloads.torch.functional import of_dtensors
from prestep.workloads.torch.tape import Tape, Tensor

# Bytes of an element: dropout reads, writes, and keeps a byte of mask; backward the same. Scaling reads and writes. A
# sum reads both and writes; where it is made by the kernel that reads it, that reads the second.
DROPPED, SCALED, ADDED, ADDED_BY_READER = 5.0, 4.0, 6.0, 2.0
# The same by Transformer Engine's kernel, whose mask is bits.
DROPPED_BITS = 4 + 1 / 8
REDUCING = ("all_reduce", "reduce_scatter")

Multiply = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pair:
    """The two matrices of an adapter: into the rank, and out of it."""

    into: Tensor
    out: Tensor


class Hop(NamedTuple):
    """Collectives of a thin value, forward and backward ("": none), and its width behind them; 0: as it was."""

    ahead: str
    back: str
    width: int = 0


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


# -- projections with their adapters --------------------------------------------------------------
def adapted_column(t: Tape, x: Tensor, w: Tensor, s: Shard) -> Tensor:
    """A projection whose rows are spread, with its adapter if it has one."""
    pair = t.pairs.get(w)
    if pair is None and not s.dtensors:
        return column_linear(t, x, w, s)
    # The projection and its adapter take the same gathered input, whose gradients are summed together.
    shares = s.gathers or s.dtensors
    if shares:
        x = _entered(t, x, s)
    y = _of_dtensors(t, column_linear(t, x, w, whole(s) if shares else s), s)
    if pair is None:
        return y
    return joined(t, y, through_column(t, x, pair, s), s)


def adapted_whole(t: Tape, x: Tensor, w: Tensor, s: Shard) -> Tensor:
    """A projection that is whole on every rank, with its adapter if it has one; ranks exchange what its matrices make.

    Megatron Bridge takes them for parts of one matrix, whatever tokens each rank has (base_linear_is_parallel).
    """
    y, pair = column_linear(t, x, w, whole(s)), t.pairs.get(w)
    if pair is None:
        return y
    own = spread_whole(s)
    z = through_column(t, x, pair, own)
    if own.group.size > 1:
        z = moved(t, z, own, "all_gather", "", y.shape)
    return joined(t, y, z, own)


def adapted_row(t: Tape, x: Tensor, w: Tensor, s: Shard, part: str = "proj") -> Tensor:
    """A projection whose columns are spread, with its adapter if it has one; ``part`` as of `row_linear`."""
    pair = t.pairs.get(w)
    if s.dtensors:
        return _dtensor_row(t, x, w, pair, s)
    y = row_linear(t, x, w, s, part)
    if pair is None:
        return y
    z = through_row(t, x, pair, s)
    if s.group.size > 1:
        z = _as_output(t, z, y.shape, s)
    return joined(t, y, z, s)


def _dtensor_row(t: Tape, x: Tensor, w: Tensor, pair: Pair | None, s: Shard) -> Tensor:
    """The same of DTensors: each rank's part of a sum, with the adapter's added, summed over ranks once."""
    on_host(t, s, "dtensor_linear")
    y = _of_dtensors(t, row_linear(t, x, w, whole(s)), s)
    if pair is not None:
        y = joined(t, y, through_row(t, x, pair, s), s)
    if s.gathers:
        part = (y.shape[0] // s.group.size, *y.shape[1:])
        return moved(t, y, s, "reduce_scatter", "all_gather", part)
    return moved(t, y, s, "all_reduce", "", y.shape)


def spread_whole(s: Shard) -> Shard:
    """How an adapter beside a whole projection is spread: DTensors leave it whole."""
    return whole(s) if s.dtensors else s


def _entered(t: Tape, x: Tensor, s: Shard) -> Tensor:
    """The whole input on every rank; its gradient is summed over them, and each gets its part."""
    on_host(t, s, "dtensor_linear")
    if s.gathers:
        full = (x.shape[0] * s.group.size, *x.shape[1:])
        return moved(t, x, s, "all_gather", "reduce_scatter", full)
    return moved(t, x, s, "", "all_reduce", x.shape)


def _as_output(t: Tape, z: Tensor, shape: tuple[int, ...], s: Shard) -> Tensor:
    """Columns of an adapter's output to what the projection's has: parts of the sequence, or all of it everywhere."""
    if s.gathers and s.adapter.all_to_all:
        return moved(t, z, s, "all_to_all", "all_to_all", shape)
    # Gathered; of that each rank takes a part of the sequence, and backward gathers the parts' gradients.
    return moved(t, z, s, "all_gather", "all_gather" if s.gathers else "", shape)


# -- adapters -------------------------------------------------------------------------------------
def through_column(
    t: Tape, x: Tensor, pair: Pair, s: Shard, multiply: Multiply | None = None
) -> Tensor:
    """What an adapter makes of its input, beside a projection whose rows are spread."""
    ahead, between = [], []
    if s.group.size > 1:
        back = "reduce_scatter" if s.dtensors else "all_reduce"
        between = [Hop("all_gather", back, s.adapter.rank)]
    if s.group.size > 1 and not s.gathers and not s.dtensors:
        ahead = [Hop("", "all_reduce")]
    return _through(t, x, pair, s, ahead, between, multiply=multiply)


def through_row(
    t: Tape, x: Tensor, pair: Pair, s: Shard, multiply: Multiply | None = None
) -> Tensor:
    """What an adapter makes of its input, beside a projection whose columns are spread: some columns of its output."""
    # The sum of all ranks' parts; backward, of B's input gradients.
    between = [Hop("all_reduce", "all_reduce")] if s.group.size > 1 else []
    if s.dtensors:
        part = max(1, s.adapter.rank // s.group.size)
        between = [Hop("reduce_scatter", "all_gather", part)]
    return _through(t, x, pair, s, (), between, s.dtensors, multiply)


def _through(
    t: Tape,
    x: Tensor,
    pair: Pair,
    s: Shard,
    ahead: Sequence[Hop],
    between: Sequence[Hop],
    early: bool = False,
    multiply: Multiply | None = None,
) -> Tensor:
    """Both products, with exchanges ahead of and between them; `early`: the thin value is scaled before it is sent."""
    times = multiply or (lambda x, w: product(t, x, w, s))
    z = _hopped(t, dropped(t, x, s, "pre"), s, ahead)
    z = times(z, pair.into)
    if early:
        z = scaled(t, z, s, "inner")
    z = _hopped(t, z, s, between)
    return times(z if early else scaled(t, z, s, "inner"), pair.out)


def _hopped(t: Tape, z: Tensor, s: Shard, hops: Sequence[Hop]) -> Tensor:
    """A thin value behind its exchanges."""
    for hop in hops:
        shape = (*z.shape[:-1], hop.width or z.shape[-1])
        z = moved(t, z, s, hop.ahead, hop.back, shape)
    return z


def joined(t: Tape, y: Tensor, z: Tensor, s: Shard) -> Tensor:
    """A projection's output and its adapter's, which both get the sum's gradient as it is."""
    z = dropped(t, scaled(t, z, s, "output"), s, "post")
    by_reader = s.compiled or _in_product(s)
    moved = (ADDED_BY_READER if by_reader else ADDED) * y.elements
    return fused(t, [unsaved(y), unsaved(z)], y.shape, moved, 0.0, kernels=(1, 0))


def product(t: Tape, x: Tensor, w: Tensor, s: Shard) -> Tensor:
    """``x @ w.T`` in 16 bits, forward and backward."""
    numbers = replace(s.numbers, products="", overlap=False)
    (n, k), needs = w.shape, x.requires_grad
    rows = x.elements // k
    t.cpu("parallel_linear")
    on_host(t, s, "dtensor_linear")
    gemm(t, rows, n, k, "nt", numbers)
    y = t.empty((*x.shape[:-1], n), x.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("parallel_linear_backward")
        on_host(t, s, "dtensor_linear_backward")
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


def _in_product(s: Shard) -> bool:
    """Whether the last product scales and adds (Transformer Engine's operation fuser, ForwardLinearScaleAdd).

    What comes between them, dropout, prevents it.
    """
    between = s.adapter.dropout and s.adapter.dropout_position == "post"
    return s.options.use_transformer_engine_op_fuser and not between


def scaled(t: Tape, x: Tensor, s: Shard, place: Literal["output", "inner"]) -> Tensor:
    """Times alpha over rank, where an adapter does that here."""
    if s.adapter.scaled != place or (place == "output" and _in_product(s)):
        return x
    n = SCALED * x.elements
    return fused(t, [unsaved(x)], x.shape, n, n)


# -- exchanges ------------------------------------------------------------------------------------
def moved(
    t: Tape, x: Tensor, s: Shard, ahead: str, back: str, shape: tuple[int, ...]
) -> Tensor:
    """An exchange among tensor-parallel ranks, forward and backward ("": none), of the larger side's size."""
    before, itemsize = x.shape, x.itemsize
    y = t.empty(shape, itemsize) if ahead else Tensor(x.storage, shape, itemsize)
    size = max(x.size, y.size)
    if ahead:
        on_host(t, s, "dtensor_exchange")
    _exchange(t, ahead, size, s)

    def backward(g: Tensor) -> list[Tensor | None]:
        on_host(t, s, "dtensor_backward")
        _exchange(t, back, size, s)
        return [t.empty(before, itemsize)]

    history = unsaved(x)
    del x
    return t.apply(y, [history], backward)


def on_host(t: Tape, s: Shard, name: str) -> None:
    """What the host spends on an operator of DTensors; compiled code calls local ones."""
    if s.dtensors and not s.compiled:
        t.cpu(name)


def _of_dtensors(t: Tape, y: Tensor, s: Shard) -> Tensor:
    return of_dtensors(t, y) if s.dtensors and not s.compiled else y


def _exchange(t: Tape, op: str, size: float, s: Shard) -> None:
    """A collective of the tensor-parallel group that is waited for; DTensor's reductions work on a copy."""
    if not op:
        return
    if s.dtensors and op in REDUCING:
        on_host(t, s, "elementwise")
        pass_over(t, int(size) // 2, 2 * size)
    exchange(t, op, size, s.group)
