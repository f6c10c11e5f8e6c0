"""Operators that sort, select and scatter rows (symbolic, as in ``functional``): what token routing is made of."""

from __future__ import annotations

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch.functional import launch_elementwise
from prestep.workloads.torch.tape import Tape, Tensor

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
    rows, columns = x.elements // x.shape[-1], x.shape[-1]
    t.cpu("softmax")
    t.launch(Kernel("softmax", (rows, columns), bytes=2 * x.size))
    y = t.empty(x.shape, x.itemsize)
    t.saves()
    saved = Tensor(y.storage, y.shape, y.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("softmax_backward")
        launch_elementwise(t, "mul", g.elements, 3 * g.size)
        product = t.empty(saved.shape, saved.itemsize)
        t.launch(Kernel("softmax_bwd", (rows, columns), bytes=3 * saved.size))
        grad = t.empty(saved.shape, saved.itemsize)
        del product
        return [grad]

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
    positions = [
        integer(t, kind, order.elements)
        for kind in ("remainder", "mul", "div", "arange")
    ]
    scratch = [t.empty(order.shape, INDEX) for _ in range(2)]
    moved = 2 * g.size + 8 * order.size  # rows read and added; keys sorted first
    t.launch(Kernel("index_put", (order.elements, row), bytes=moved))
    del positions, scratch


def select(t: Tape, x: Tensor, at: int) -> Tensor:
    """``x[at]`` on the first axis: a view; backward fills zeros of the whole and copies the gradient in."""
    t.cpu("view")
    y = Tensor(x.storage, x.shape[1:], x.itemsize)
    shape, itemsize = x.shape, x.itemsize
    _ = at

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("select_backward")
        grad = t.empty(shape, itemsize)
        launch_elementwise(t, "fill", grad.elements, grad.size)
        launch_elementwise(t, "copy", g.elements, 2 * g.size)
        return [grad]

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
        t.launch(
            Kernel("scatter_add", (where.elements,), bytes=where.size + 2 * g.size)
        )
        return [grad]

    return t.apply(y, [x], backward)


def scale_rows(t: Tape, x: Tensor, weights: Tensor) -> Tensor:
    """``x * weights.unsqueeze(1)``: saves both; the weights' gradient is a product summed over each row."""
    t.cpu("view")
    t.cpu("elementwise")
    t.saves()
    t.launch(Kernel("mul", (x.elements,), layout="row"))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("elementwise_backward", 3)
        launch_elementwise(t, "mul", g.elements, 3 * g.size)
        product = t.empty(x.shape, x.itemsize)
        t.launch(Kernel("mul", (g.elements,), layout="row"))
        gx = t.empty(x.shape, x.itemsize)
        t.launch(Kernel("sum", (g.elements,), layout="row", bytes=g.size))
        del product
        return [gx, t.empty(weights.shape, weights.itemsize)]

    return t.apply(t.empty(x.shape, x.itemsize), [x, weights], backward)


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
