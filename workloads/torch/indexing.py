"""Operators that sort, select and scatter rows (symbolic, as in ``aten``): what token routing is made of."""

from __future__ import annotations

from prestep.workloads.operation import ELEMENT_BYTES, Argument, Operand
from prestep.workloads.operators import copies, indexing, losses
from prestep.workloads.operators.pointwise import elementwise
from prestep.workloads.operators.reductions import reduction
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.operators.tensors import contiguous
from prestep.workloads.torch import aten
from prestep.workloads.torch.tape import DTYPES, Tape, Tensor

INDEX = 8  # bytes of an int64
NOTHING = "-inf"


def integer(t: Tape, name: str, *reads: Tensor | int) -> Tensor:
    """An elementwise operation on int64, or a range of so many, whose result has no gradient."""
    first = reads[0]
    shape = first.shape if isinstance(first, Tensor) else (first,)
    rule = copies.RULES.get(name.partition(".")[0], elementwise)
    y = t.empty(shape, INDEX)
    return aten.call(t, rule, name, reads, y)


def counts(t: Tape, values: Tensor, count: int) -> Tensor:
    """``values.histc(count, 0, count)``: how many of each whole number there are."""
    y, name, arguments = t.empty((count,), INDEX), "histc.default", (values, count, 0)
    return aten.call(t, indexing.elements, name, (*arguments, count), y)


def sums(t: Tape, x: Tensor, over: int) -> Tensor:
    """``x.sum(over)`` of whole numbers in two dimensions."""
    y, name = t.empty(x.shape[1 - over :][:1], INDEX), "sum.dim_IntList"
    return aten.call(t, reduction, name, (x, (over,)), y)


def argsort(t: Tape, keys: Tensor) -> Tensor:
    """``keys.argsort(stable=True)``, whose other result, the sorted keys, is dropped at once."""
    values, order = (t.empty(keys.shape, INDEX) for _ in range(2))
    name, further = "sort.stable", {"stable": True}
    aten.call(t, indexing.order, name, (keys,), values, order, **further)
    return order


def softmax(t: Tape, x: Tensor, hidden: bool = False, dim: int = -1) -> Tensor:
    """Softmax over the last axis: saves its output; ``hidden``: rows may be minus infinity throughout.

    `dim`: how the program numbers that axis.
    """
    y, name = t.empty(x.shape, x.itemsize), "_softmax"
    if hidden:
        aten.call(t, losses.safe_softmax, "_safe_softmax.default", (x, -1), y)
    else:
        aten.call(t, losses.softmax, f"{name}.default", (x, dim, False), y)
    t.saves()
    saved, last = Tensor(y.storage, y.shape, y.itemsize), DTYPES[x.itemsize]

    def backward(g: Tensor) -> list[Tensor | None]:
        rule, made = losses.softmax_backward, t.empty(saved.shape, saved.itemsize)
        of = g, saved, dim, last
        return [aten.call(t, rule, f"{name}_backward_data.default", of, made)]

    return t.apply(y, [x], backward)


def highest(t: Tape, x: Tensor) -> Tensor:
    """``x.max(-1, keepdim=True).values``: saves where they are; backward puts gradients there, among zeros."""
    t.saves()
    shape = x.shape
    y, places = (t.empty((*shape[:-1], 1), n) for n in (x.itemsize, INDEX))
    aten.call(t, kernels_of, "max.dim", (x, -1, True), y, places)

    def backward(g: Tensor) -> list[Tensor | None]:
        arguments = new_zeros(t, g, shape), -1, places, g
        made = t.empty(shape, g.itemsize)
        return [aten.call(t, kernels_of, "scatter.src", arguments, made)]

    return t.apply(y, [x], backward)


def index(t: Tape, x: Tensor, order: Tensor, times: int = 1) -> Tensor:
    """``x[order]`` along the first axis: saves ``order``; backward adds the rows back, which sorts them first.

    Each row is taken so many `times`; 0: nobody knows.
    """
    t.saves()
    y = t.empty((order.elements, *x.shape[1:]), x.itemsize)
    aten.call(t, indexing.pick, "index.Tensor", (x, [order]), y)
    shape, itemsize = x.shape, x.itemsize

    def backward(g: Tensor) -> list[Tensor | None]:
        options = {"dtype": DTYPES[itemsize], "layout": "torch.strided"}
        grad = new_zeros(t, g, shape, **options)
        name, arguments = "_index_put_impl_.default", (grad, [order], g, True, True)
        known = {"largest_group": times} if times else {}
        aten.call(t, indexing.put, name, arguments, grad, **known)
        return [grad]

    return t.apply(y, [x], backward)


def single(t: Tape, x: Tensor) -> Tensor:
    """``x[:, :, [place]]``, a copy; the list goes to the GPU, and backward puts the gradient among zeros."""
    t.saves()
    place = t.empty((1,), INDEX)
    listed = Operand("int64", (1,), (), "cpu")
    aten.call(t, kernels_of, "_to_copy.default", (listed,), place)
    shape, itemsize = x.shape, x.itemsize
    y = t.empty((*shape[:2], 1, *shape[3:]), itemsize)
    aten.call(t, indexing.pick, "index.Tensor", (x, [None, None, place]), y)

    def backward(g: Tensor) -> list[Tensor | None]:
        options = {"dtype": DTYPES[itemsize], "layout": "torch.strided"}
        grad = new_zeros(t, g, shape, **options)
        name, arguments = "_index_put_impl_.default", (grad, [None, None, place], g)
        known = {"largest_group": 1}
        return [
            aten.call(t, indexing.put, name, (*arguments, True, True), grad, **known)
        ]

    return t.apply(y, [x], backward)


def put(t: Tape, x: Tensor, order: Tensor, y: Tensor, times: int = 0) -> Tensor:
    """``y[order] = x``: saves ``order``; backward picks the rows again. `times`: as of `index`."""
    t.saves()
    known = {"largest_group": times} if times else {}
    aten.call(t, indexing.put, "index_put_.default", (y, [order], x), y, **known)
    shape, itemsize = x.shape, x.itemsize

    def backward(g: Tensor) -> list[Tensor | None]:
        grad = t.empty(shape, itemsize)
        return [aten.call(t, indexing.pick, "index.Tensor", (g, [order]), grad)]

    return t.apply(y, [x], backward)


def new_zeros(t: Tape, g: Tensor, shape: tuple[int, ...], **options: str) -> Tensor:
    """What the gradient of rows is put into."""
    y, name = t.empty(shape, g.itemsize), "new_zeros.default"
    return aten.call(t, copies.fill, name, (g, shape), y, **options)


def select(t: Tape, x: Tensor, at: int, dim: int = 0) -> Tensor:
    """``x.select(dim, at)``: a view; backward fills zeros of the whole and copies the gradient in."""
    shape, itemsize, strides = x.shape, x.itemsize, aten.strides_of(x)
    t.cpu("view")
    left = [(*each[:dim], *each[dim + 1 :]) for each in (shape, strides)]
    y = aten.view(x, *left)
    y.offset += at * strides[dim]

    def backward(g: Tensor) -> list[Tensor | None]:
        name, y = "select_backward.default", t.empty(shape, itemsize)
        of = g, shape, dim, at
        return [aten.call(t, copies.filled_then_copied, name, of, y)]

    return t.apply(y, [x], backward)


def stack(t: Tape, parts: list[Tensor], at: int = 0) -> Tensor:
    """``torch.stack(parts, at)``: one concatenation; backward hands out views of the first axis."""
    one = parts[0]
    shape, itemsize, count = one.shape, one.itemsize, len(parts)
    y = t.empty((*shape[:at], count, *shape[at:]), itemsize)
    arguments = (parts, at) if at else (parts,)
    aten.call(t, copies.join, "stack.default", arguments, y)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", count)
        return [Tensor(g.storage, shape, itemsize) for _ in range(count)]

    return t.apply(y, parts, backward)


def gather(t: Tape, x: Tensor, where: Tensor) -> Tensor:
    """``x.gather(1, where)``: saves both, ``x`` for its shape; backward adds what was picked to zeros."""
    t.saves(2)
    y = t.empty(where.shape, x.itemsize)
    aten.call(t, indexing.pick, "gather.default", (x, 1, where), y)
    shape = x.shape

    def backward(g: Tensor) -> list[Tensor | None]:
        grad = new_zeros(t, g, shape)
        name, arguments = "scatter_add_.default", (grad, 1, where, g)
        return [aten.call(t, indexing.put, name, arguments, grad)]

    return t.apply(y, [x], backward)


def index_add(t: Tape, onto: Tensor, x: Tensor, order: Tensor) -> Tensor:
    """``onto.index_add(0, order, x)``: saves ``order`` and ``x`` (only for its shape)."""
    t.saves(2)
    y, arguments = t.empty(onto.shape, x.itemsize), (onto, 0, order, x)
    aten.call(t, indexing.copied_then_put, "index_add.default", arguments, y)

    def backward(g: Tensor) -> list[Tensor | None]:
        grad, name = t.empty(x.shape, x.itemsize), "index_select.default"
        arguments = g, 0, order
        return [aten.call(t, indexing.pick, name, arguments, grad)]

    return t.apply(y, [x], backward)


def repeated(t: Tape, x: Tensor, shape: tuple[int, ...], times: int) -> Tensor:
    """``x.view(shape).expand(...)`` so often along the third dimension, which is 1; backward sums gradients over it."""
    own, steps = x.shape, aten.strides_of(x)
    t.cpu("view", 2)
    whole = (*shape[:2], times, *shape[3:])
    y = aten.view(x, whole, (*steps[:2], 0, *steps[3 - len(shape) :]))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", 2)
        return [aten.view(aten.sum_to(t, g, shape), own, contiguous(own))]

    return t.apply(y, [x], backward)


def hidden_keys(t: Tape, seen: Tensor) -> Tensor:
    """What is added to scores of keys that a mask has (0) or has not (minus infinity), as attention converts a mask."""
    kind = DTYPES[t.itemsize]
    with t.no_grad():
        low = made(t, "full.default", ((), NOTHING), (), kind, dtype=kind)
        options = {"dtype": kind, "layout": "torch.strided"}
        zero = made(t, "scalar_tensor.default", (0.0,), (), kind, **options)
        return made(t, "where.self", (seen, zero, low), None, kind)


def made(
    t: Tape,
    name: str,
    reads: tuple[object, ...],
    shape: tuple[int, ...] | None = None,
    kind: str = "",
    **options: Argument,
) -> Tensor:
    """The result of an operator without history; of a shape and type: those of its first operand."""
    first = reads[0] if isinstance(reads[0], Tensor) else None
    if first is not None:
        shape, kind = shape or first.shape, kind or first.operand.dtype
    assert shape is not None
    y = t.empty(shape, ELEMENT_BYTES[kind])
    y.dtype = kind
    return aten.call(t, kernels_of, name, reads, y, **options)
