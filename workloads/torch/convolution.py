"""Operators of convolutional networks (symbolic, as in ``functional``), in channels-last bfloat16.

Kernel lists were read off a Kineto trace of torchvision's ResNet-50 under PyTorch 2.11 on H200.
"""

from __future__ import annotations

from dataclasses import dataclass

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch.functional import launch_elementwise
from prestep.workloads.torch.tape import Tape, Tensor

INDEX = 8  # bytes of an int64


def conv2d(t: Tape, x: Tensor, w: Tensor, stride: int) -> Tensor:
    """Convolution padded to keep the size (divided by ``stride``): saves its input.

    ``x`` is (n, c, h, w), ``w`` is (k, c, r, s).
    """
    n, c, height, width = x.shape
    k, _, r, s = w.shape
    out = (n, k, -(-height // stride), -(-width // stride))
    shape = (n, c, height, width, k, r, s, stride)
    t.cpu("conv")
    t.saves()
    t.launch(Kernel("conv_fwd", shape))
    needs_x = x.requires_grad

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("conv_backward")
        gx = None
        if needs_x:
            gx = t.empty(x.shape, x.itemsize)
            t.launch(Kernel("conv_dgrad", shape))
        gw = t.empty(w.shape, w.itemsize)
        t.launch(Kernel("conv_wgrad", shape))
        return [gx, gw]

    return t.apply(t.empty(out, x.itemsize), [x, w], backward)


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
    channels, batches = x.shape[1], statistics.batches
    t.cpu("elementwise_nograd")
    t.launch(Kernel("add", batches.shape, "int64", bytes=2 * batches.size))
    t.cpu("batch_norm")
    t.saves()
    _launch_batch_norm(t, "batchnorm_fwd", x)
    saved = [t.empty((channels,), 4) for _ in range(2)]

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("batch_norm_backward")
        _ = (g, saved)
        gx = t.empty(x.shape, x.itemsize)
        _launch_batch_norm(t, "batchnorm_bwd", x)
        return [gx, *(t.empty(p.shape, p.itemsize) for p in (weight, bias))]

    return t.apply(t.empty(x.shape, x.itemsize), [x, weight, bias], backward)


def _launch_batch_norm(t: Tape, kind: str, x: Tensor) -> None:
    """A kernel over all channels, after its semaphores are zeroed."""
    channels = x.shape[1]
    semaphores = max(1, channels // 32)
    launch_elementwise(t, "fill", semaphores, 4.0 * semaphores)
    t.launch(Kernel(kind, (x.elements, channels)))


def relu_(t: Tape, x: Tensor, backward_layout: str = "") -> Tensor:
    """ReLU in place: the result, which is what is saved, lies in the memory of the input.

    ``backward_layout`` is "strided" where the gradient arrives in another memory format than the result.
    """
    t.cpu("elementwise")
    launch_elementwise(t, "relu", x.elements, 2 * x.size)
    y = Tensor(x.storage, x.shape, x.itemsize)
    t.saves()
    saved = Tensor(x.storage, x.shape, x.itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("elementwise_backward")
        kind, size = "threshold_backward", 3 * saved.size
        t.launch(Kernel(kind, (g.elements,), layout=backward_layout, bytes=size))
        return [t.empty(saved.shape, saved.itemsize)]

    return t.apply(y, [x], backward)


def add_(t: Tape, x: Tensor, other: Tensor) -> Tensor:
    """``x += other``: in the memory of ``x``; both get the gradient as it is."""
    t.cpu("elementwise")
    launch_elementwise(t, "add", x.elements, 3 * x.size)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward")
        return [g, g]

    return t.apply(Tensor(x.storage, x.shape, x.itemsize), [x, other], backward)


def max_pool2d(t: Tape, x: Tensor) -> Tensor:
    """3x3 maxima at stride 2: saves its input and the position of every maximum (8 bytes each)."""
    n, c, height, width = x.shape
    t.cpu("pool")
    t.saves()
    y = t.empty((n, c, -(-height // 2), -(-width // 2)), x.itemsize)
    where = t.empty(y.shape, INDEX)
    t.launch(Kernel("maxpool_fwd", (x.elements,)))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("pool_backward")
        gx = t.empty(x.shape, x.itemsize)
        launch_elementwise(t, "fill", gx.elements, gx.size)
        t.launch(Kernel("maxpool_bwd", (gx.elements,)))
        _ = (where, g)
        return [gx]

    return t.apply(y, [x], backward)


def mean_pool(t: Tape, x: Tensor) -> Tensor:
    """Mean over height and width, flattened to (n, c): saves nothing."""
    shape, itemsize = x.shape, x.itemsize
    t.cpu("pool")
    t.cpu("view")
    t.launch(Kernel("avgpool", (x.elements,)))
    y = t.empty(shape[:2], itemsize)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("pool_backward")
        t.cpu("view_backward")
        # The mean came back as a strided view (channels last): its gradient is laid out anew, then spread.
        launch_elementwise(t, "fill", g.elements, g.size)
        launch_elementwise(t, "copy", g.elements, 2 * g.size)
        spread = t.empty(shape, itemsize)
        t.launch(Kernel("div", (spread.elements,), layout="strided"))
        return [spread]

    return t.apply(y, [x], backward)
