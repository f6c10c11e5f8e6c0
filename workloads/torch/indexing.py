"""Operators that sort, select and scatter rows (symbolic, as in ``functional``): what token routing is made of."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operators import copies, losses
from prestep.workloads.torch import aten
from prestep.workloads.torch.functional import launch_elementwise
from prestep.workloads.torch.tape import DTYPES, Tape, Tensor

INDEX = 8  # bytes of an int64


def integer(t: Tape, kind: str, elements: int) -> Tensor:
    """An elementwise operation on int64 whose result is a new tensor without gradient."""
    t.cpu("elementwise_nograd")
    passes = 1 if kind == "arange" else 2
    t.launch(Kernel(kind, (elements,), "int64", bytes=float(passes * INDEX * elements)))
    return t.empty((elements,), INDEX)


def argsort(t: Tape, keys: Tensor) -> Tensor:
    """Stable argsort of int64 keys: a copy, then a radix sort of eight passes over keys and indices."""
    t.cpu("sort")
    scratch = [t.empty(keys.shape, INDEX) for _ in range(3)]
    launch_elementwise(t, "copy", keys.elements, 2 * keys.size)
    order = t.empty(keys.shape, INDEX)
    t.launch(Kernel("argsort", (keys.elements,)))
    del scratch
    return order


def softmax(t: Tape, x: Tensor) -> Tensor:
    """Softmax over the last axis: saves its output."""
    name, y = "_softmax", t.empty(x.shape, x.itemsize)
    aten.call(t, losses.softmax, f"{name}.default", (x, -1, False), y, "softmax")
    t.saves()
    saved, last = Tensor(y.storage, y.shape, y.itemsize), DTYPES[x.itemsize]

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu(t.launching)  # gradients times outputs, then their sums
        rule, made = losses.softmax_backward, t.empty(saved.shape, saved.itemsize)
        of, host = (g, saved, -1, last), "softmax_backward"
        return [aten.call(t, rule, f"{name}_backward_data.default", of, made, host)]

    return t.apply(y, [x], backward)


def index(t: Tape, x: Tensor, order: Tensor) -> Tensor:
    """``x[order]`` along the first axis: saves ``order``; backward adds the rows back (accumulating ``index_put_``)."""
    row = x.elements // x.shape[0]
    t.cpu("index")
    t.saves()
    _launch_index(t, x, order)
    y = t.empty((order.elements, *x.shape[1:]), x.itemsize)
    shape, itemsize = x.shape, x.itemsize

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("index_backward")
        grad = t.empty(shape, itemsize)
        launch_elementwise(t, "fill", grad.elements, grad.size)
        _put_rows(t, g, order, row)
        return [grad]

    return t.apply(y, [x], backward)


def _launch_index(t: Tape, x: Tensor, order: Tensor) -> None:
    """Rows by ``index_select``, single elements by ``index``."""
    row, count = x.elements // x.shape[0], order.elements
    if row > 1:
        t.launch(Kernel("index_select", (count, row, x.shape[0])))
        return
    moved = order.size + 2.0 * count * x.itemsize
    t.launch(Kernel("index", (count,), bytes=moved))


def _put_rows(t: Tape, g: Tensor, order: Tensor, row: int) -> None:
    """Adds rows up where ``order`` says: their positions are computed and sorted first."""
    kinds = "remainder", "mul", "div", "arange"
    positions = [integer(t, kind, order.elements) for kind in kinds]
    scratch = [t.empty(order.shape, INDEX) for _ in range(2)]
    moved = 2 * g.size + 8 * order.size  # rows read and added; keys sorted first
    t.launch(Kernel("index_put", (order.elements, row), bytes=moved))
    del positions, scratch


def select(t: Tape, x: Tensor, at: int) -> Tensor:
    """``x[at]`` on the first axis: a view; backward fills zeros of the whole and copies the gradient in."""
    t.cpu("view")
    y = Tensor(x.storage, x.shape[1:], x.itemsize)
    shape, itemsize = x.shape, x.itemsize

    def backward(g: Tensor) -> list[Tensor | None]:
        name, y = "select_backward.default", t.empty(shape, itemsize)
        of, host = (g, shape, 0, at), "select_backward"
        return [aten.call(t, copies.filled_then_copied, name, of, y, host)]

    return t.apply(y, [x], backward)


def stack(t: Tape, parts: list[Tensor]) -> Tensor:
    """``torch.stack``: one concatenation; backward hands out views."""
    one = parts[0]
    t.cpu("stack")
    y = t.empty((len(parts), *one.shape), one.itemsize)
    launch_elementwise(t, "cat", y.elements, 2 * y.size)
    shape, itemsize, count = one.shape, one.itemsize, len(parts)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", count)
        return [Tensor(g.storage, shape, itemsize) for _ in range(count)]

    return t.apply(y, parts, backward)


def transpose_first(
    t: Tape, x: Tensor, a: int, b: int, shape: tuple[int, ...]
) -> Tensor:
    """``x.view(a, b, ...).transpose(0, 1).reshape(shape)``: a copy, unless one of the two axes is trivial."""
    t.cpu("view", 3)
    copies = a > 1 and b > 1
    before = x.shape

    def move(source: Tensor, target: tuple[int, ...]) -> Tensor:
        if not copies:
            return Tensor(source.storage, target, source.itemsize)
        t.cpu("elementwise")
        t.launch(Kernel("copy", (source.elements,), layout="strided"))
        return t.empty(target, source.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", 3)
        return [move(g, before)]

    return t.apply(move(x, shape), [x], backward)


def gather(t: Tape, x: Tensor, where: Tensor) -> Tensor:
    """``x.gather(1, where)``, flattened: saves ``where``; backward is a fill and a ``scatter_add_``."""
    t.cpu("index")
    t.saves()
    t.launch(Kernel("gather", (where.elements,)))
    y = t.empty((where.elements,), x.itemsize)
    shape, itemsize = x.shape, x.itemsize

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("index_backward")
        grad = t.empty(shape, itemsize)
        launch_elementwise(t, "fill", grad.elements, grad.size)
        size = where.size + 2 * g.size
        t.launch(Kernel("scatter_add", (where.elements,), bytes=size))
        return [grad]

    return t.apply(y, [x], backward)


def index_add(t: Tape, rows: int, x: Tensor, order: Tensor) -> Tensor:
    """``zeros.index_add(0, order, x)`` onto ``rows`` rows: saves ``order`` and ``x`` (only for its shape)."""
    row = x.elements // x.shape[0]
    t.cpu("index")
    t.saves()
    y = t.empty((rows, row), x.itemsize)
    launch_elementwise(t, "copy", y.elements, 2 * y.size)
    t.launch(Kernel("index_add", (x.elements,)))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("index_backward")
        grad = t.empty(x.shape, x.itemsize)
        t.launch(Kernel("index_select", (order.elements, row, rows)))
        return [grad]

    return t.apply(y, [x], backward)
