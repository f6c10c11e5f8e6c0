"""Operators of convolutional networks (symbolic, as in ``aten``), on pictures whose channels lie last."""

from __future__ import annotations

from dataclasses import dataclass

from prestep.workloads.operators import convolution, indexing, norms
from prestep.workloads.operators.copies import copy_into, fill
from prestep.workloads.operators.pointwise import elementwise
from prestep.workloads.operators.reductions import reduction
from prestep.workloads.torch import aten
from prestep.workloads.torch.tape import Tape, Tensor

INDEX = 8  # bytes of an int64
Grads = list[Tensor | None]


def picture(
    t: Tape, *shape: int, itemsize: int = 2, owner: str = "activations"
) -> Tensor:
    """A new tensor (n, channels, height, width), whose channels lie next to each other."""
    return channels_last(t.empty(shape, itemsize, owner))


def channels_last(x: Tensor) -> Tensor:
    """The same memory with channels next to each other."""
    _, c, height, width = x.shape
    strides = (c * height * width, 1, c * width, c)
    x.strides = () if height * width == 1 or c == 1 else strides
    return x


def conv2d(t: Tape, x: Tensor, w: Tensor, stride: int) -> Tensor:
    """Convolution padded to keep the size (divided by ``stride``): saves its input.

    ``x`` is (n, c, h, w), ``w`` is (k, c, r, s).
    """
    (n, _, height, width), (k, _, r, _) = x.shape, w.shape
    steps = (stride, stride), (r // 2, r // 2), (1, 1), False, (0, 0), 1
    t.cpu("conv")
    t.saves()
    y = picture(t, n, k, -(-height // stride), -(-width // stride))
    rule, name = convolution.forward, "convolution.default"
    aten.call(t, rule, name, (x, w, None, *steps), y)
    mask = x.requires_grad, True, False

    def backward(g: Tensor) -> Grads:
        made = [picture(t, *each.shape) for each in (x, w)[not mask[0] :]]
        name, arguments = "convolution_backward.default", (g, x, w, (0,), *steps, mask)
        rule, (first, *further) = convolution.backward, made
        aten.call(t, rule, name, arguments, first, *further)
        return [None, *made] if len(made) == 1 else [*made]

    return t.apply(y, [x, w], backward)


@dataclass(frozen=True)
class Statistics:
    """Buffers of one batch norm: running mean and variance, and how many batches they have seen."""

    mean: Tensor
    variance: Tensor
    batches: Tensor


def batch_norm(
    t: Tape, x: Tensor, weight: Tensor, bias: Tensor, statistics: Statistics
) -> Tensor:
    """Batch norm in training: saves its input and the batch's mean and deviation; counts the batch."""
    batches, running = statistics.batches, (statistics.mean, statistics.variance)
    aten.call(t, elementwise, "add_.Tensor", (batches, 1), batches)
    t.cpu("batch_norm")
    t.saves()
    y, saved = picture(t, *x.shape), [t.empty(weight.shape, 4) for _ in range(2)]
    name, arguments = "native_batch_norm", (x, weight, bias, *running, True, 0.1, 1e-5)
    rule = norms.channels
    aten.call(t, rule, f"{name}.default", arguments, y, *saved)

    def backward(g: Tensor) -> Grads:
        gx, *gw = picture(t, *x.shape), *(t.empty(weight.shape) for _ in range(2))
        of = (g, x, weight, *running, *saved, True, 1e-5, (True, True, True))
        aten.call(t, rule, f"{name}_backward.default", of, gx, *gw)
        return [gx, *gw]

    return t.apply(y, [x, weight, bias], backward)


def relu_(t: Tape, x: Tensor) -> Tensor:
    """ReLU in place: the result, which is what is saved, lies in the memory of the input."""
    y = aten.view(x, x.shape, x.strides)
    aten.call(t, elementwise, "relu_.default", (x,), y)
    t.saves()
    saved = aten.view(x, x.shape, x.strides)

    def backward(g: Tensor) -> Grads:
        # PyTorch looks at the result's order first, then at the gradient's.
        gx, name = picture(t, *saved.shape), "threshold_backward.default"
        return [aten.call(t, elementwise, name, (g, saved, 0), gx)]

    return t.apply(y, [x], backward)


def add_(t: Tape, x: Tensor, other: Tensor) -> Tensor:
    """``x += other``: in the memory of ``x``; both get the gradient as it is."""
    y = aten.view(x, x.shape, x.strides)
    aten.call(t, elementwise, "add_.Tensor", (x, other), y)

    def backward(g: Tensor) -> Grads:
        t.cpu("view_backward")
        return [g, g]

    return t.apply(y, [x, other], backward)


def max_pool2d(t: Tape, x: Tensor) -> Tensor:
    """3x3 maxima at stride 2: saves its input and the position of every maximum (8 bytes each)."""
    n, c, height, width = x.shape
    t.saves()
    y = picture(t, n, c, -(-height // 2), -(-width // 2))
    where = picture(t, *y.shape, itemsize=INDEX)
    name, steps = "max_pool2d_with_indices", ((3, 3), (2, 2), (1, 1))
    rule = indexing.image
    aten.call(t, rule, f"{name}.default", (x, *steps), y, where)

    def backward(g: Tensor) -> Grads:
        gx, of = picture(t, *x.shape), (g, x, *steps, (1, 1), False, where)
        return [aten.call(t, rule, f"{name}_backward.default", of, gx)]

    return t.apply(y, [x], backward)


def mean_pool(t: Tape, x: Tensor) -> Tensor:
    """Mean over height and width, flattened to (n, c): saves nothing."""
    shape, itemsize, pixels = x.shape, x.itemsize, x.shape[2] * x.shape[3]
    t.cpu("view")
    y = t.empty((*shape[:2], 1, 1), itemsize)
    aten.call(t, reduction, "mean.dim", (x, (-1, -2), True), y)

    def backward(g: Tensor) -> Grads:
        t.cpu("view_backward")
        # The mean came back as a view of its own strides: its gradient is laid out anew.
        g = _laid_out(t, g)
        spread = aten.view(g, shape, (shape[1], 1, 0, 0))
        return [aten.over(t, "div.Scalar", spread, pixels)]

    return t.apply(aten.view(y, shape[:2], (shape[1], 1)), [x], backward)


def _laid_out(t: Tape, g: Tensor) -> Tensor:
    """The gradient of a view by as_strided: zeros, into which it is copied."""
    zeros = t.empty((g.elements,), g.itemsize)
    aten.call(t, fill, "new_zeros.default", (g, zeros.shape), zeros)
    whole = aten.view(zeros, g.shape, g.strides)
    return aten.call(t, copy_into, "copy_.default", (whole, g), whole)
