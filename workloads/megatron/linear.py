"""Megatron's sharded projections: columns or rows of a weight on each rank of the tensor-parallel group."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.megatron.gemm import Numbers, gemm, quantize
from workloads.megatron.tensor_parallel import begin, finish, reduce
from workloads.megatron.weight_gradients import weight_gradient
from workloads.parallel.group import Group
from workloads.torch.tape import Tape, Tensor

# Parts in which user buffers split a GEMM whose result is reduce-scattered beside it (Transformer Engine, num_splits).
SPLITS = 4


def column_linear(
    t: Tape, x: Tensor, w: Tensor, group: Group, sequence: bool, o: Numbers
) -> Tensor:
    """``x @ w.T`` with the rows of ``w`` spread over the group.

    Forward, sequence parallelism gathers ``x`` first. Backward, the input's gradient is summed over the group (or
    reduce-scattered) while the weight's gradient is computed; ``x`` is gathered again beside the input's GEMM
    (tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
    """
    column = _Column(x, w, group, sequence and group.size > 1, o, x.requires_grad)
    t.cpu("linear")
    quantize(t, x.elements, o)
    if column.gathers:
        _gather_beside(t, column.gathered, group, o)
    n, k = w.shape
    gemm(t, column.rows, n, k, "nt", o)
    if column.gathers:
        finish(t)
    y = t.empty((*column.whole[:-1], n), x.itemsize)
    return t.apply(y, [x, w], lambda g: column.backward(t, g))


@dataclass(frozen=True, eq=False)
class _Column:
    """A projection whose weight's rows are spread over the group.

    ``gathers``: each rank has a part of the input; ``needs``: the input's gradient is wanted.
    """

    x: Tensor
    w: Tensor
    group: Group
    gathers: bool
    o: Numbers
    needs: bool

    @property
    def whole(self) -> tuple[int, ...]:
        """Shape of the input on all ranks together."""
        parts = self.group.size if self.gathers else 1
        return (self.x.shape[0] * parts, *self.x.shape[1:])

    @property
    def rows(self) -> int:
        """Rows of the input on all ranks together."""
        parts = self.group.size if self.gathers else 1
        return self.x.elements * parts // self.w.shape[1]

    @property
    def gathered(self) -> float:
        """Bytes of the whole input, as the products take it."""
        size = self.o.operand_size(self.x.itemsize)
        return float(self.rows * self.w.shape[1] * size)

    @property
    def _reduces(self) -> bool:
        """The input's gradient is a sum over the group."""
        return self.needs and self.group.size > 1

    def backward(self, t: Tape, g: Tensor) -> list[Tensor | None]:
        """Gradients of the input and the weight."""
        n, k = self.w.shape
        t.cpu("linear_backward")
        quantize(t, self.rows * n, self.o)
        operand = self._gather_again(t)
        grad = self._input_gradient(t)
        if self.gathers:
            finish(t)
        self._reduce_beside(t)
        weight_gradient(t, n, k, self.rows, self.o, (g, operand))
        if self._reduces:
            finish(t)
        if grad is not None and self.gathers:
            grad = t.empty(self.x.shape, self.x.itemsize)
        return [grad, Tensor(None, self.w.shape)]

    def _gather_again(self, t: Tape) -> Tensor:
        """The whole input, on its way where each rank has a part."""
        if not self.gathers:
            return self.x
        begin(t, "all_gather", self.gathered, self.group, self.o.overlap)
        return t.empty(self.whole, self.x.itemsize)

    def _input_gradient(self, t: Tape) -> Tensor | None:
        """This rank's summand of the whole input's gradient, where it is wanted."""
        if not self.needs:
            return None
        n, k = self.w.shape
        grad = t.empty(self.whole, self.x.itemsize)
        gemm(t, self.rows, k, n, "nn", self.o)
        return grad

    def _reduce_beside(self, t: Tape) -> None:
        """Sums the input's gradient beside the weight's; not asynchronous, before it."""
        if self._reduces:
            op = "reduce_scatter" if self.gathers else "all_reduce"
            size = float(self.rows * self.w.shape[1] * self.x.itemsize)
            begin(t, op, size, self.group)
        if not self.o.asynchronous:
            finish(t)


def row_linear(
    t: Tape, x: Tensor, w: Tensor, group: Group, sequence: bool, o: Numbers
) -> Tensor:
    """``x @ w.T`` with the columns of ``w`` spread over the group: outputs are summed (or reduce-scattered)."""
    n = w.shape[0]
    scatters = sequence and group.size > 1
    t.cpu("linear")
    quantize(t, x.elements, o)
    y = t.empty((*x.shape[:-1], n), x.itemsize)
    _row_products(t, y, w, group, sequence, o)
    if scatters:
        y = t.empty((x.shape[0] // group.size, *x.shape[1:-1], n), x.itemsize)
    gathered = group if scatters else None
    return t.apply(y, [x, w], lambda g: _row_gradients(t, g, x, w, gathered, o))


def _row_products(
    t: Tape, y: Tensor, w: Tensor, group: Group, sequence: bool, o: Numbers
) -> None:
    """This rank's summand of the output, and the sum over the group, beside it where user buffers allow."""
    n, k = w.shape
    rows = y.elements // n
    if sequence and group.size > 1 and o.overlap:
        _scatter_beside(t, rows, n, k, group, o)
        return
    gemm(t, rows, n, k, "nt", o)
    if group.size > 1:
        reduce(t, y, group, sequence)


def _row_gradients(
    t: Tape, g: Tensor, x: Tensor, w: Tensor, gathered: Group | None, o: Numbers
) -> list[Tensor | None]:
    """Gradients of the input and the weight; the output's is ``gathered`` over a group where each rank has a part."""
    n, k = w.shape
    m = x.elements // k
    t.cpu("linear_backward")
    quantize(t, g.elements, o)
    if gathered is not None:
        size = float(m * n * o.operand_size(g.itemsize))
        _gather_beside(t, size, gathered, o)
    grad = t.empty(x.shape, x.itemsize)
    gemm(t, m, k, n, "nn", o)
    if gathered is not None:
        finish(t)
    weight_gradient(t, n, k, m, o, (g, x))
    return [grad, Tensor(None, w.shape)]


def _gather_beside(t: Tape, size: float, group: Group, o: Numbers) -> None:
    """The gather in front of a GEMM: before it, or beside it as a ring of exchanges.

    The GEMM begins with the part that lies here; copy engines move the others (Transformer Engine, ring_exchange).
    """
    if o.overlap:
        begin(t, "all_gather", size, group, copied=True)
        return
    begin(t, "all_gather", size, group)
    finish(t)


def _scatter_beside(t: Tape, m: int, n: int, k: int, group: Group, o: Numbers) -> None:
    """A GEMM in parts, each reduce-scattered while the next is computed."""
    for _ in range(SPLITS):
        gemm(t, max(1, m // SPLITS), n, k, "nt", o)
        begin(t, "reduce_scatter", 2.0 * m * n / SPLITS, group, copied=True)
    finish(t)
