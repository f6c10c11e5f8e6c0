"""PyTorch's operators on symbolic tensors: what its dispatcher sees of a model, forward and backward.

Layers that are written with these say their operations as a capture of the program does. Gradients follow
tools/autograd/derivatives.yaml, layouts of results aten/src/ATen/TensorIterator.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from prestep.workloads.operation import Argument, Operand, Operation
from prestep.workloads.operators.copies import RULES as COPIES
from prestep.workloads.operators.copies import filled_then_copied
from prestep.workloads.operators.embeddings import embedded, embedding_gradient
from prestep.workloads.operators.losses import picked, softmax, softmax_backward, spread
from prestep.workloads.operators.pointwise import elementwise
from prestep.workloads.operators.reductions import reduction
from prestep.workloads.operators.tensors import contiguous, in_order, view_strides
from prestep.workloads.torch.tape import DTYPES, Tape, Tensor

if TYPE_CHECKING:
    from prestep.workloads.operators.rules import Rule

#: Host costs of a view that the program makes, and of one that autograd makes.
VIEW, VIEW_BACKWARD = "view", "view_backward"

#: Python's end of a slice that has none.
LAST = 2**63 - 1

Grads = list[Tensor | None]


def call(
    t: Tape,
    rule: Rule,
    name: str,
    arguments: Sequence[object],
    y: Tensor,
    *further: Tensor,
    **options: Argument,
) -> Tensor:
    """Calls "mul.Tensor" or another operator, whose kernels a rule of its family knows; returns its first result."""
    own, named = tuple(map(_argument, arguments)), tuple(options.items())
    results = tuple(each.operand for each in (y, *further))
    operation = Operation(f"aten.{name}", own, named, results)
    t.operate(operation, rule, arguments, (y, *further))
    return y


def _argument(value: object) -> Argument:
    if isinstance(value, Tensor):
        return value.operand
    if isinstance(value, list | tuple):
        return tuple(map(_argument, value))
    assert value is None or isinstance(value, Operand | int | float | str)
    return value


def _node(
    t: Tape, y: Tensor, inputs: list[Tensor], backward: Callable[[Tensor], Grads]
) -> Tensor:
    """A result with its history. A gradient may come in another shape: `Tensor.view` leaves none."""
    shape = y.shape

    def run(g: Tensor) -> Grads:
        return backward(g if g.shape == shape else view(g, shape, contiguous(shape)))

    return t.apply(y, inputs, run)


# -- views ------------------------------------------------------------------------------------------
def strides_of(x: Tensor) -> tuple[int, ...]:
    return x.strides or contiguous(x.shape)


def view(x: Tensor, shape: tuple[int, ...], strides: Sequence[int]) -> Tensor:
    """The same memory in another shape and order, without history."""
    y = Tensor(x.storage, shape, x.itemsize)
    y.offset, y.dtype, y.is_view = x.offset, x.dtype, True
    y.strides = () if in_order(shape, strides) else tuple(strides)
    return y


def beside(x: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Parts of the last dimension, one behind the other, without history."""
    parts, begin = [], 0
    for width in widths:
        part = view(x, (*x.shape[:-1], width), strides_of(x))
        part.offset += begin
        parts.append(part)
        begin += width
    return parts


def _shape_of(x: Tensor) -> Tensor:
    """A tensor without memory: what backward has of one that was not saved."""
    return view(Tensor(None, x.shape, x.itemsize), x.shape, strides_of(x))


def transpose(t: Tape, x: Tensor, one: int, other: int) -> Tensor:
    """``x.transpose(one, other)``."""

    def turned(x: Tensor, host: str) -> Tensor:
        t.cpu(host)
        shape, strides = list(x.shape), list(strides_of(x))
        for sizes in (shape, strides):
            sizes[one], sizes[other] = sizes[other], sizes[one]
        return view(x, tuple(shape), strides)

    return _node(t, turned(x, VIEW), [x], lambda g: [turned(g, VIEW_BACKWARD)])


def reshape(t: Tape, x: Tensor, *shape: int) -> Tensor:
    """``x.reshape(shape)``: a view where strides allow it, else of a copy."""
    before = x.shape

    def shaped(x: Tensor, shape: tuple[int, ...], viewing: str = "") -> Tensor:
        strides = view_strides(x.shape, strides_of(x), shape)
        if strides is None:
            y = t.empty(x.shape, x.itemsize)
            rule, order = COPIES["clone"], "torch.contiguous_format"
            x = call(t, rule, "clone.default", (x,), y, memory_format=order)
        elif viewing:
            t.cpu(viewing)
        y = view(x, shape, strides or contiguous(shape))
        y.is_view = strides is not None  # a copy's only reader keeps nothing else alive
        return y

    def backward(g: Tensor) -> Grads:
        # One node of autograd, whether it copies or not.
        return [shaped(g, before, VIEW_BACKWARD)]

    t.cpu(VIEW)
    return _node(t, shaped(x, shape), [x], backward)


def part(t: Tape, x: Tensor, begin: int, end: int = LAST, dim: int = -1) -> Tensor:
    """``x[..., begin:end]``, or of another dimension: backward writes the gradient among zeros."""
    shape, itemsize, at = x.shape, x.itemsize, dim % len(x.shape)
    width = (end + shape[at] if end < 0 else min(end, shape[at])) - begin

    def backward(g: Tensor) -> Grads:
        arguments, y = (g, shape, at, begin, end, 1), t.empty(shape, itemsize)
        rule = filled_then_copied
        return [call(t, rule, "slice_backward.default", arguments, y)]

    t.cpu(VIEW)
    strides = strides_of(x)
    y = view(x, (*shape[:at], width, *shape[at + 1 :]), strides)
    y.offset += begin * strides[at]
    return _node(t, y, [x], backward)


# -- elements ---------------------------------------------------------------------------------------
def over(
    t: Tape,
    name: str,
    *reads: Tensor | float,
    itemsize: int = 0,
    **options: str,
) -> Tensor:
    """An operator over the elements of tensors, without history.

    ``itemsize``: bytes of an element of the result; 0: as of the widest operand.
    """
    tensors = [each for each in reads if isinstance(each, Tensor)]
    sizes = zip_longest(*(reversed(each.shape) for each in tensors), fillvalue=1)
    shape = tuple(reversed([max(size) for size in sizes]))
    y = t.empty(shape, itemsize or max([each.itemsize for each in tensors]))
    y.strides = _result_strides(shape, tensors)
    rule = COPIES.get(name.partition(".")[0], elementwise)
    if itemsize:
        options = {"dtype": DTYPES[itemsize], **options}
    return call(t, rule, name, reads, y, **options)


def _result_strides(shape: tuple[int, ...], reads: list[Tensor]) -> tuple[int, ...]:
    """A result is dense, its dimensions in the order of the operands'; () where that is the usual one."""
    if not any(each.strides for each in reads):
        return ()
    return _ordered(
        shape, tuple([(each.shape, strides_of(each), each.itemsize) for each in reads])
    )


# Shape, strides and bytes of an element.
Laid = tuple[tuple[int, ...], tuple[int, ...], int]


# A model has few kinds of tensors, and many of each.
@lru_cache(maxsize=4096)
def _ordered(shape: tuple[int, ...], reads: tuple[Laid, ...]) -> tuple[int, ...]:
    """`_result_strides` of tensors that lie so."""
    steps = [_steps(each, shape) for each in reads]
    order = list(reversed(range(len(shape))))  # from the innermost dimension outwards
    for i in range(1, len(order)):
        at = i
        for before in reversed(range(i)):
            sign = _compared(steps, shape, order[before], order[at])
            if sign < 0:
                break
            if sign > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    strides, step = [0] * len(shape), 1
    for dimension in order:
        strides[dimension] = step
        step *= shape[dimension]
    return () if tuple(strides) == contiguous(shape) else tuple(strides)


def _steps(x: Laid, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes from an element to the next along each dimension of the result; 0 where an operand is repeated."""
    sizes, strides, itemsize = x
    lead = len(shape) - len(sizes)
    dimensions = zip(sizes, strides, shape[lead:], strict=True)
    own = (0 if size < whole else step * itemsize for size, step, whole in dimensions)
    return (0,) * lead + tuple(own)


def _compared(
    steps: list[tuple[int, ...]], shape: tuple[int, ...], inner: int, outer: int
) -> int:
    """Whether two dimensions lie the other way round (1), in this order (-1), or nobody can tell (0)."""
    for each in steps:
        if not each[inner] or not each[outer]:
            continue
        if each[inner] != each[outer]:
            return 1 if each[inner] > each[outer] else -1
        if shape[inner] > shape[outer]:
            return 1
    return 0


def add(t: Tape, a: Tensor, b: Tensor, name: str = "add.Tensor") -> Tensor:
    """``a + b``, or another sum: saves nothing."""
    shapes = a.shape, b.shape

    def backward(g: Tensor) -> Grads:
        if name == "sub.Tensor":
            other = over(t, "neg.default", g)
        else:
            other = g
            t.cpu(VIEW_BACKWARD)
        return [sum_to(t, g, shapes[0]), sum_to(t, other, shapes[1])]

    return _node(t, over(t, name, a, b), [a, b], backward)


sub = partial(add, name="sub.Tensor")


def mul(t: Tape, a: Tensor, b: Tensor) -> Tensor:
    """``a * b``: saves each factor for the gradient of the other one."""
    wanted = a.requires_grad, b.requires_grad
    left, right = a if wanted[1] else _shape_of(a), b if wanted[0] else _shape_of(b)
    t.saves(sum(wanted))

    def backward(g: Tensor) -> Grads:
        # Gradients come in the alphabetical order of the operator's arguments: other, self.
        of_b = over(t, "mul.Tensor", g, left) if wanted[1] else None
        of_a = over(t, "mul.Tensor", g, right) if wanted[0] else None
        both = (of_a, left), (of_b, right)
        return [x and sum_to(t, x, like.shape, like.itemsize) for x, like in both]

    return _node(t, over(t, "mul.Tensor", a, b), [a, b], backward)


def add_number(t: Tape, x: Tensor, number: float) -> Tensor:
    """``x + number``: saves nothing."""
    return _node(t, over(t, "add.Tensor", x, number), [x], lambda g: [g])


def mul_number(t: Tape, x: Tensor, number: float, name: str = "mul.Tensor") -> Tensor:
    """``x * number``: saves nothing."""
    times = partial(over, t, name)
    y = times(x, number)
    return _node(t, y, [x], lambda g: [times(g, number)])


def neg(t: Tape, x: Tensor) -> Tensor:
    """``-x``: saves nothing."""
    turned = partial(over, t, "neg.default")
    return _node(t, turned(x), [x], lambda g: [turned(g)])


def square(t: Tape, x: Tensor) -> Tensor:
    """``x.pow(2)``: saves its input, which backward raises to the first power once more."""

    def backward(g: Tensor) -> Grads:
        first = over(t, "pow.Tensor_Scalar", x, 1.0)
        twice = over(t, "mul.Scalar", first, 2.0)
        del first
        return [over(t, "mul.Tensor", g, twice)]

    t.saves(x.requires_grad)
    return _node(t, over(t, "pow.Tensor_Scalar", x, 2), [x], backward)


def rsqrt(t: Tape, x: Tensor) -> Tensor:
    """``x.rsqrt()``: saves its result."""
    y = over(t, "rsqrt.default", x)
    t.saves(x.requires_grad)
    root = view(y, y.shape, strides_of(y))

    def backward(g: Tensor) -> Grads:
        cube = over(t, "pow.Tensor_Scalar", root, 3)
        half = over(t, "mul.Scalar", g, -0.5)
        return [over(t, "mul.Tensor", half, cube)]

    return _node(t, y, [x], backward)


#: Operators that are called backward of activations, and whether they see the result; the others see the input.
ACTIVATIONS = {
    "silu": ("silu_backward.default", False),
    "gelu": ("gelu_backward.default", False),
    "relu": ("threshold_backward.default", True),
    "sigmoid": ("sigmoid_backward.default", True),
    "tanh": ("tanh_backward.default", True),
}


def activation(t: Tape, kind: str, x: Tensor) -> Tensor:
    """silu, gelu, relu, its square ("relu2"), sigmoid or tanh: saves its input or its result."""
    if kind == "relu2":
        return square(t, activation(t, "relu", x))
    name, of_result = ACTIVATIONS[kind]
    t.saves(x.requires_grad)
    y = over(t, f"{kind}.default", x)
    saved = view(y, y.shape, strides_of(y)) if of_result else x
    more = (0,) if kind == "relu" else ()
    return _node(t, y, [x], lambda g: [over(t, name, g, saved, *more)])


def to(t: Tape, x: Tensor, itemsize: int, **options: str) -> Tensor:
    """``x.to(dtype)`` of another size: saves nothing."""
    before, name = x.itemsize, "_to_copy.default"

    def backward(g: Tensor) -> Grads:
        return [over(t, name, g, itemsize=before, layout="torch.strided")]

    return _node(t, over(t, name, x, itemsize=itemsize, **options), [x], backward)


def cat(t: Tape, parts: Sequence[Tensor]) -> Tensor:
    """``torch.cat(parts, -1)``: saves nothing, its gradients are views."""
    widths = [each.shape[-1] for each in parts]

    def backward(g: Tensor) -> Grads:
        t.cpu(VIEW_BACKWARD, len(widths))
        return list[Tensor | None](beside(g, widths))

    shape = (*parts[0].shape[:-1], sum(widths))
    return _node(t, joined(t, parts, shape, -1), list(parts), backward)


def joined(t: Tape, parts: Sequence[Tensor], shape: tuple[int, ...], at: int) -> Tensor:
    """Parts behind each other along the last dimension, which the caller numbers ``at``; without history."""
    y = t.empty(shape, parts[0].itemsize)
    return call(t, COPIES["cat"], "cat.default", (list(parts), at), y)


# -- rows -------------------------------------------------------------------------------------------
def sum_to(t: Tape, g: Tensor, shape: tuple[int, ...], itemsize: int = 0) -> Tensor:
    """A gradient added up over the dimensions along which an operand was repeated, in the operand's type."""
    own = (1,) * (lead := len(g.shape) - len(shape)) + shape
    repeated = tuple(i for i, n in enumerate(own) if i < lead or n != g.shape[i])
    if repeated:
        y, arguments = t.empty(own, g.itemsize), (g, repeated, True)
        g = call(t, reduction, "sum.dim_IntList", arguments, y)
    if itemsize not in (0, g.itemsize):
        g = over(t, "_to_copy.default", g, itemsize=itemsize)
    return g if g.shape == shape else view(g, shape, contiguous(shape))


def mean(t: Tape, x: Tensor) -> Tensor:
    """``x.mean(-1, keepdim=True)``: saves nothing; its gradient is repeated and divided."""
    shape = x.shape
    y = t.empty((*shape[:-1], 1), x.itemsize)
    call(t, reduction, "mean.dim", (x, (-1,), True), y)

    def backward(g: Tensor) -> Grads:
        t.cpu(VIEW_BACKWARD)
        repeated = view(g, shape, (*strides_of(g)[:-1], 0))
        return [over(t, "div.Scalar", repeated, shape[-1])]

    return _node(t, y, [x], backward)


def cross_entropy(t: Tape, x: Tensor) -> Tensor:
    """``torch.nn.functional.cross_entropy`` of rows: keeps their log-probabilities."""
    shape, itemsize = (x.elements // x.shape[-1], x.shape[-1]), x.itemsize
    rows, labels = view(x, shape, contiguous(shape)), Tensor(None, shape[:1], 8)
    name, arguments = "_log_softmax.default", (rows, 1, False)
    t.cpu("loss")
    logp = call(t, softmax, name, arguments, t.empty(shape, itemsize))
    loss, weights = t.empty((), itemsize), t.empty((), itemsize)
    of_labels = logp, labels, None, 1, -100
    call(t, picked, "nll_loss_forward.default", of_labels, loss, weights)
    saved = (_shape_of(loss), *of_labels, weights)
    return _node(t, loss, [x], lambda _: [_of_scores(t, logp, saved)])


def _of_scores(t: Tape, logp: Tensor, saved: tuple[object, ...]) -> Tensor:
    """The gradient of a loss's scores: spread over zeros, then through the softmax."""
    y, name = t.empty(logp.shape, logp.itemsize), "nll_loss_backward.default"
    scores = call(t, spread, name, saved, y)
    name, last = "_log_softmax_backward_data.default", DTYPES[logp.itemsize]
    y = t.empty(logp.shape, logp.itemsize)
    return call(t, softmax_backward, name, (scores, logp, 1, last), y)


def ones_like(t: Tape, loss: Tensor) -> Tensor:
    """The gradient of a loss by itself, which backward begins with."""
    y, name = Tensor(None, loss.shape, loss.itemsize), "ones_like.default"
    order = {"memory_format": "torch.preserve_format"}
    return call(t, COPIES["ones_like"], name, (loss,), y, **order)


def embedding(t: Tape, ids: tuple[int, int], table: Tensor) -> Tensor:
    """``torch.nn.functional.embedding``: the gradient is zeroed, then the ids are sorted and its rows added up."""
    rows, itemsize = table.shape, table.itemsize
    words, name = Tensor(None, ids, 8), "embedding.default"
    y = t.empty((*ids, rows[1]), itemsize)
    call(t, embedded, name, (table, words), y)

    def backward(g: Tensor) -> Grads:
        name = "embedding_dense_backward.default"
        arguments = g, words, rows[0], -1, False
        y = t.empty(rows, itemsize)
        return [call(t, embedding_gradient, name, arguments, y)]

    return _node(t, y, [table], backward)
