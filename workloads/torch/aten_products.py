"""Matrix products: their operands keep the strides that autograd gives them, from which cuBLAS's layouts follow."""

from __future__ import annotations

from dataclasses import replace

from prestep.sim.graph.kernel import product
from prestep.workloads.operation import Argument, Operand
from prestep.workloads.operators.products import added, grouped, two
from prestep.workloads.operators.tensors import view_strides
from prestep.workloads.torch.aten import call, reshape, strides_of, sum_to, view
from prestep.workloads.torch.tape import Tape, Tensor


def rows(t: Tape, x: Tensor) -> Tensor:
    """``x`` as a matrix with its last dimension: a view of the same memory, without history; a copy if it has to be."""
    count, width = x.elements // x.shape[-1], x.shape[-1]
    strides = view_strides(x.shape, strides_of(x), (count, width))
    if strides is None:
        return reshape(t, view(x, x.shape, x.strides), count, width)
    return view(x, (count, width), strides)


def turned(x: Tensor) -> Tensor:
    """``x.mT``, without history."""
    (*ahead, m, n), (*steps, down, right) = x.shape, strides_of(x)
    return view(x, (*ahead, n, m), (*steps, right, down))


def multiply(
    t: Tape, left: Tensor, right: Tensor, bias: Tensor | None = None
) -> Tensor:
    """``left @ right (+ bias)`` of matrices, without history."""
    y = t.empty((left.shape[0], right.shape[1]), left.itemsize)
    return _multiply(t, left, right, bias, y)


def multiply_sizes(
    t: Tape,
    m: int,
    n: int,
    k: int,
    layout: str,
    biased: bool = False,
    reserved: int = 0,
) -> None:
    """A product whose memory is accounted for by the caller; `layout` as BLAS says it: "nt" is ``x @ w.t()``.

    `reserved`: SMs that it leaves to others.
    """
    left, right = _operand(t, (m, k), layout[0]), _operand(t, (k, n), layout[1])
    bias = Tensor(None, (n,), t.itemsize) if biased else None
    t.reserved = reserved
    _multiply(t, left, right, bias, Tensor(None, (m, n), t.itemsize))
    t.reserved = 0


def multiply_narrow(
    t: Tape, m: int, n: int, k: int, dtype: str, layout: str = "nt", reserved: int = 0
) -> None:
    """A product of operands that were quantized, and so lie in rows; `reserved`: SMs that it leaves to others."""
    moved, flops = float(m * k + n * k + 2 * m * n), 2.0 * m * n * k
    one = product((m, n, k), dtype, layout)
    t.launch(replace(one, bytes=moved, flops=flops, reserved=reserved))


def forward_layout(dtype: str, layout: str = "nt") -> str:
    """Forward products in FP8 add up in fewer bits, gradients in 32 (Transformer Engine, torchao)."""
    return f"{layout}_fast" if dtype == "fp8" else layout


def multiply_batch(t: Tape, batch: int, m: int, n: int, k: int, layout: str) -> None:
    """As many products as a batch has, whose memory is accounted for by the caller."""
    sizes = ((batch, m, k), layout[0]), ((batch, k, n), layout[1])
    y = Tensor(None, (batch, m, n), t.itemsize)
    call(t, two, "bmm.default", [_operand(t, *each) for each in sizes], y)


def matmul(t: Tape, left: Tensor, right: Tensor) -> Tensor:
    """``torch.matmul`` of (batch, heads, m, k) and (batch, heads or 1, k, n): saves both, one head once for each."""
    ahead, m, n = left.shape[:2], left.shape[2], right.shape[3]
    if right.shape[1] < ahead[1]:
        single, (sample, _, *steps) = right, strides_of(right)
        right = view(single, (*ahead, *right.shape[2:]), (sample, 0, *steps))
        right = t.apply(right, [single], lambda g: [sum_to(t, g, single.shape)])
    left, right = (
        reshape(t, x, x.shape[0] * x.shape[1], *x.shape[2:]) for x in (left, right)
    )
    return reshape(t, batched(t, left, right), *ahead, m, n)


def batched(t: Tape, left: Tensor, right: Tensor) -> Tensor:
    """``torch.bmm``: saves both."""
    t.saves(2)

    def backward(g: Tensor) -> list[Tensor | None]:
        of_right = _batch(t, turned(left), g)
        return [_batch(t, g, turned(right)), of_right]

    return t.apply(_batch(t, left, right), [left, right], backward)


def _batch(t: Tape, left: Tensor, right: Tensor) -> Tensor:
    """``torch.bmm``, without history."""
    y = t.empty((*left.shape[:2], right.shape[2]), left.itemsize)
    return call(t, two, "bmm.default", (left, right), y, **_rounded(t))


def multiply_groups(
    t: Tape, left: Tensor, right: Tensor, experts: int, y: Tensor, rows: int = 0
) -> Tensor:
    """The product of each expert's rows, which lie behind each other, with its own matrix; without history.

    `rows`: those of all experts, where others follow that are nobody's; 0: all.
    """
    known: dict[str, Argument] = {"rows": rows} if rows else {}
    arguments = left, right, Operand("int32", (experts,))
    return call(t, grouped, "_grouped_mm.default", arguments, y, **known)


def multiply_group_sizes(
    t: Tape, experts: int, rows: int, n: int, k: int, layout: str
) -> None:
    """Products of experts whose memory is accounted for by the caller; sizes as of `multiply_sizes`.

    `rows` are those of all experts: m, or what weights' gradients ("tn") sum over.
    """
    summed = layout == "tn"
    left = _operand(t, (n, rows) if summed else (rows, k), layout[0])
    right = _operand(t, (rows, k) if summed else (experts, k, n), layout[1])
    y = Tensor(None, (experts, n, k) if summed else (rows, n), t.itemsize)
    multiply_groups(t, left, right, experts, y)


def _operand(t: Tape, shape: tuple[int, ...], by: str) -> Tensor:
    """Matrices without memory, whose rows ("n") or columns ("t") lie behind each other."""
    if by == "n":
        return Tensor(None, shape, t.itemsize)
    return turned(Tensor(None, (*shape[:-2], shape[-1], shape[-2]), t.itemsize))


def _multiply(
    t: Tape, left: Tensor, right: Tensor, bias: Tensor | None, y: Tensor
) -> Tensor:
    if bias is None:
        return call(t, two, "mm.default", (left, right), y, **_rounded(t))
    return call(t, added, "addmm.default", (bias, left, right), y, **_rounded(t))


def _rounded(t: Tape) -> dict[str, Argument]:
    """What captures say of products of 32 bits that the program allows to be rounded."""
    return {"allow_tf32": True} if t.plain == "tf32" else {}
