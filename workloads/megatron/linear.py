"""Megatron's sharded projections: columns or rows of a weight on each rank of the tensor-parallel group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prestep.workloads.exchanges.tensor import (
    SCATTERS,
    Product,
    begin,
    exchange,
    finish,
    gathered_product,
    reduce,
    scattered_product,
)
from prestep.workloads.megatron.elementwise import unsaved
from prestep.workloads.megatron.gemm import (
    Numbers,
    cast_again,
    gemm,
    quantize,
    quantized,
    transpose_weight,
    weight_gradient,
)
from prestep.workloads.megatron.shard import Shard
from prestep.workloads.torch.tape import Tape, Tensor

AMAX = 4.0  # bytes of the largest value of an operand


def column_linear(t: Tape, x: Tensor, w: Tensor, s: Shard) -> Tensor:
    """``x @ w.T`` with the rows of ``w`` spread over the tensor-parallel group.

    Forward, sequence parallelism gathers ``x`` first. Backward, the input's gradient is summed over the group (or
    reduce-scattered) while the weight's gradient is computed; ``x`` is gathered again beside the input's GEMM
    (tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
    """
    needs, x = x.requires_grad, saved(t, x, w, s.numbers)
    column = _Column(x, w, s, needs)
    n, k = w.shape
    t.cpu("linear")
    quantize(t, x.elements, s.numbers, agreement(t, s))
    cast_again(t, n * k, s.numbers)
    _gathered_product(t, column.gathered, (column.rows, n, k), "nt", s)
    y = t.empty((*column.whole[:-1], n), x.itemsize)
    return t.apply(y, [x, w], lambda g: column.backward(t, g))


@dataclass(frozen=True, eq=False)
class _Column:
    """A projection whose weight's rows are spread over the group; ``needs``: the input's gradient is wanted."""

    x: Tensor
    w: Tensor
    s: Shard
    needs: bool

    @property
    def parts(self) -> int:
        """In which the input lies on the ranks."""
        return self.s.group.size if self.s.gathers else 1

    @property
    def whole(self) -> tuple[int, ...]:
        """Shape of the input on all ranks together."""
        return (self.x.shape[0] * self.parts, *self.x.shape[1:])

    @property
    def rows(self) -> int:
        """Rows of the input on all ranks together."""
        return self.x.elements * self.parts // self.w.shape[1]

    @property
    def gathered(self) -> float:
        """Bytes of the whole input, as the products take it."""
        size = self.s.numbers.gathered_size(self.x.itemsize)
        return self.x.elements * self.parts * size

    @property
    def _scatters(self) -> bool:
        """The input's gradient is reduce-scattered beside the product that makes it."""
        return self.needs and self.s.gathers and self.s.numbers.scatters

    @property
    def _reduces(self) -> bool:
        """The input's gradient is a sum over the group, still to be made."""
        return self.needs and self.s.group.size > 1 and not self._scatters

    def backward(self, t: Tape, g: Tensor) -> list[Tensor | None]:
        """Gradients of the input and the weight."""
        n, k = self.w.shape
        t.cpu("linear_backward")
        quantize(t, self.rows * n, self.s.numbers, activated=True)
        operand = self._gather_again(t)
        grad = self._input_gradient(t)
        if self.s.gathers and self.w.requires_grad:
            finish(t)
        self._reduce_beside(t)
        if self.w.requires_grad:
            weight_gradient(t, n, k, self.rows, self.s.numbers, (g, operand))
        if self._reduces:
            finish(t)
        if grad is not None and self.s.gathers:
            grad = t.empty(self.x.shape, self.x.itemsize)
        return [grad, gradient_of(self.w)]

    def _gather_again(self, t: Tape) -> Tensor:
        """The whole input, on its way where each rank has a part; none is needed of a frozen weight."""
        if not self.s.gathers or not self.w.requires_grad:
            return self.x
        overlap = self.s.numbers.overlap
        begin(t, "all_gather", self.gathered, self.s.group, overlap)
        return quantized(t, t.empty(self.whole, self.x.itemsize), self.s.numbers)

    def _input_gradient(self, t: Tape) -> Tensor | None:
        """This rank's summand of the whole input's gradient, where it is wanted."""
        if not self.needs:
            return None
        n, k = self.w.shape
        transpose_weight(t, n * k, self.s.numbers)
        grad = t.empty(self.whole, self.x.itemsize)
        if self._scatters:
            _scatter_beside(t, (self.rows, k, n), self.s, "dgrad", "nn")
        else:
            gemm(t, self.rows, k, n, "nn", self.s.numbers)
        return grad

    def _reduce_beside(self, t: Tape) -> None:
        """Sums the input's gradient beside the weight's; not asynchronous, before it."""
        if self._reduces:
            op = "reduce_scatter" if self.s.gathers else "all_reduce"
            size = float(self.x.elements * self.parts * self.x.itemsize)
            # User buffers' streams have a high priority (comm_gemm_overlap.cpp): no kernel keeps them from SMs.
            beside = self.s.gathers and self.s.numbers.overlap
            begin(t, op, size, self.s.group, beside)
        if not self.s.numbers.asynchronous:
            finish(t)


def row_linear(t: Tape, x: Tensor, w: Tensor, s: Shard, part: str = "proj") -> Tensor:
    """``x @ w.T`` with the columns of ``w`` spread over the group: outputs are summed (or reduce-scattered).

    ``part`` names the projection for user buffers: attention's or the feed-forward's ("fc2").
    """
    n, x = w.shape[0], saved(t, x, w, s.numbers)
    t.cpu("linear")
    quantize(t, x.elements, s.numbers, activated=True)
    cast_again(t, w.elements, s.numbers)
    y = t.empty((*x.shape[:-1], n), x.itemsize)
    _row_products(t, y, w, s, part)
    if s.gathers:
        rows = x.shape[0] // s.group.size
        y = t.empty((rows, *x.shape[1:-1], n), x.itemsize)
    return t.apply(y, [x, w], lambda g: _row_gradients(t, g, x, w, s))


def _row_products(t: Tape, y: Tensor, w: Tensor, s: Shard, part: str) -> None:
    """This rank's summand of the output, and the sum over the group, beside it where user buffers allow."""
    n, k = w.shape
    rows = y.elements // n
    if s.gathers and s.numbers.overlap:
        _scatter_beside(t, (rows, n, k), s, part)
        return
    gemm(t, rows, n, k, "nt", s.numbers)
    if s.group.size > 1:
        reduce(t, y, s.group, s.sequence)


def _row_gradients(
    t: Tape, g: Tensor, x: Tensor, w: Tensor, s: Shard
) -> list[Tensor | None]:
    """Gradients of the input and the weight; the output's is gathered where each rank has a part."""
    n, k = w.shape
    rows = x.elements // k
    t.cpu("linear_backward")
    quantize(t, g.elements, s.numbers, agreement(t, s))
    transpose_weight(t, n * k, s.numbers)
    grad = t.empty(x.shape, x.itemsize)
    readings = 2 if w.requires_grad else 1
    size = rows * n * s.numbers.gathered_size(g.itemsize, readings)
    _gathered_product(t, size, (rows, k, n), "nn", s)
    if w.requires_grad:
        weight_gradient(t, n, k, rows, s.numbers, (g, x))
    return [grad, gradient_of(w)]


def agreement(t: Tape, s: Shard) -> Callable[[], None] | None:
    """How ranks find the largest value of an operand of which each has a part; None where each has all of it.

    One fp32 number, of what a column-parallel projection takes and of what a row-parallel one gets back (Transformer
    Engine, module/linear.py: with_amax_reduction). Computation waits for it.
    """
    return partial(exchange, t, "all_reduce", AMAX, s.group) if s.gathers else None


def saved(t: Tape, x: Tensor, w: Tensor, numbers: Numbers) -> Tensor:
    """The input as backward needs it: that of a frozen weight is not kept."""
    return quantized(t, x, numbers) if w.requires_grad else unsaved(x)


def gradient_of(w: Tensor) -> Tensor | None:
    """What a product hands to its weight: the gradient is in a buffer already; None for a frozen weight."""
    return Tensor(None, w.shape) if w.requires_grad else None


def _gathered_product(
    t: Tape, size: float, shape: tuple[int, int, int], layout: str, s: Shard
) -> None:
    """A GEMM of rows that are gathered, ``size`` bytes: before it, or beside it where user buffers allow."""
    rows, n, k = shape
    product = _product(t, n, k, layout, s)
    if s.gathers and s.numbers.overlap:
        gathered_product(t, s.group, size, rows, product)
        return
    if s.gathers:
        exchange(t, "all_gather", size, s.group)
    product(rows, 0)


def _scatter_beside(
    t: Tape, shape: tuple[int, int, int], s: Shard, part: str, layout: str = "nt"
) -> None:
    """A GEMM in parts, each reduce-scattered while the next is computed."""
    rows, n, k = shape
    how = SCATTERS[part][bool(s.numbers.products)]
    product = _product(t, n, k, layout, s)
    scattered_product(t, s.group, how, rows, n, product)


def _product(t: Tape, n: int, k: int, layout: str, s: Shard) -> Product:
    """A GEMM of some rows of an operand."""

    def run(rows: int, reserved: int) -> None:
        gemm(t, rows, n, k, layout, s.numbers, reserved)

    return run
