"""Megatron's fused elementwise work on the symbolic tape: bias, dropout, residual sums and activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.job.megatron import Megatron
from prestep.workloads.torch.tape import Tape, Tensor

Size = tuple[tuple[int, ...], int]  # a tensor's shape, and the bytes of an element


def pass_over(t: Tape, elements: int, moved: float, stream: str | None = None) -> None:
    """A kernel over so many elements that moves so many bytes."""
    t.launch(Kernel("fused", (elements,), bytes=moved), stream)


def fused(
    t: Tape,
    inputs: list[Tensor],
    shape: tuple[int, ...],
    forward: float,
    backward: float,
    saved: float = 0.0,
    parameters: int = 0,
    kernels: tuple[int, int] = (1, 1),
) -> Tensor:
    """Elementwise work in one kernel (or ``kernels`` of equal parts): moves ``forward`` and ``backward`` bytes.

    Inputs are saved for backward as long as they have a storage, plus ``saved`` bytes (dropout masks, statistics). The
    last ``parameters`` inputs are parameters, whose gradients are column sums of the output's.
    """
    t.cpu("fused")
    y = t.empty(shape, inputs[0].itemsize)
    _launch_parts(t, y, forward, kernels[0])
    mask = t.empty((max(1, int(saved)),), 1) if saved else None
    sizes = [(x.shape, x.itemsize) for x in inputs]
    trained = [x.requires_grad for x in inputs[len(inputs) - parameters :]]

    def back(g: Tensor) -> list[Tensor | None]:
        _ = (mask, inputs)
        t.cpu("fused_backward")
        _launch_parts(t, g, backward, kernels[1])
        return _gradients(t, g, sizes, trained)

    return t.apply(y, inputs, back)


def _launch_parts(t: Tape, x: Tensor, size: float, count: int) -> None:
    """Launches so many kernels over the elements of a tensor, which move ``size`` bytes together."""
    for _ in range(count):
        pass_over(t, x.elements, size / count)


def _gradients(
    t: Tape, g: Tensor, sizes: list[Size], trained: list[bool]
) -> list[Tensor | None]:
    """Gradients of inputs of these sizes; the last are parameters, whose are sums over the output's columns.

    ``trained`` says of each parameter whether it has a gradient.
    """
    activations = len(sizes) - len(trained)
    grads: list[Tensor | None] = [t.empty(*size) for size in sizes[:activations]]
    for size, wanted in zip(sizes[activations:], trained, strict=True):
        if not wanted:
            grads.append(None)
            continue
        t.launch(Kernel("sum", (g.elements,), bytes=g.size))
        grads.append(t.empty(*size))
    return grads


def passing(
    t: Tape,
    x: Tensor,
    forward: Callable[[], None] | None = None,
    backward: Callable[[], None] | None = None,
) -> Tensor:
    """The same value; something happens as it passes, and as its gradient does."""
    if forward is not None:
        forward()

    def back(g: Tensor) -> list[Tensor | None]:
        if backward is not None:
            backward()
        return [g]

    return t.apply(Tensor(x.storage, x.shape, x.itemsize), [x], back)


def copied_in(t: Tape, x: Tensor, captured: bool = True) -> Tensor:
    """A value as a captured part begins, which a kernel copies to where the graph reads it (make_graphed_callables)."""
    return (
        passing(t, x, partial(pass_over, t, x.elements, 2.0 * x.size))
        if captured
        else x
    )


def copied_back(
    t: Tape, x: Tensor, captured: bool = True, beside: float = 0.0
) -> Tensor:
    """A value that a graph made: its gradient, with others of so many bytes, is copied to where the graph reads it."""
    moved = 2.0 * (x.size + beside)
    return (
        passing(t, x, backward=partial(pass_over, t, x.elements, moved))
        if captured
        else x
    )


def unsaved(x: Tensor) -> Tensor:
    """The same value for an operator that does not save it."""
    y = Tensor(None, x.shape, x.itemsize, x.node)
    y.requires_grad = x.requires_grad
    return y


def bias_add(t: Tape, x: Tensor, bias: Tensor | None) -> Tensor:
    """``x + bias`` as a kernel of its own (Megatron's linear layers do not use the GEMM's epilogue)."""
    if bias is None:
        return x
    return fused(t, [x, bias], x.shape, 2 * x.size, 0.0, parameters=1, kernels=(1, 0))


def bias_dropout_add(
    t: Tape, x: Tensor, bias: Tensor | None, residual: Tensor, o: Megatron
) -> Tensor:
    """``residual + dropout(x + bias)``: one kernel where fused, else one each."""
    biases = [] if bias is None else [bias]
    dropout = o.hidden_dropout > 0
    mask = x.elements if dropout else 0.0
    kernels = 1 if o.bias_fusion else 1 + len(biases) + dropout
    between = (kernels - 1) * 2 * x.size  # written by one kernel, read by the next
    forward = 3 * x.size + mask + between
    backward = 2 * x.size + mask if dropout or biases else 0.0
    return fused(
        t,
        [unsaved(x), unsaved(residual), *biases],
        x.shape,
        forward,
        backward,
        saved=mask,
        parameters=len(biases),
        kernels=(kernels, 1 if backward else 0),
    )


def activate(
    t: Tape,
    x: Tensor,
    bias: Tensor | None,
    gated: bool,
    o: Megatron,
    written: float = 2.0,
    weighted: bool = False,
) -> Tensor:
    """Bias and GELU, or SwiGLU, as one kernel: saves its input. ``written``: bytes of an element that it writes.

    ``weighted``: by the router, compiled (`weighted_swiglu_back`). Backward the halves of the input's gradient are
    joined in one kernel that reads everything for each of them, and a kernel more sums up the weight's. On an H200
    these took 194 and 81 us where 112 and 67 us are a stream of each byte once (lab/notes/models.md).
    """
    halves = 2 if gated else 1
    shape = (*x.shape[:-1], x.shape[-1] // halves)
    output, narrow = x.size / halves, written / x.itemsize
    biases = [] if bias is None else [bias]
    kernels = 1 if o.bias_fusion or bias is None else 2
    between = (kernels - 1) * 2 * x.size
    reads = 3 if weighted else 1
    return fused(
        t,
        [x, *biases],
        shape,
        x.size + output * narrow + between,
        reads * (x.size + output) + x.size * narrow,
        parameters=len(biases),
        kernels=(kernels, 2 if weighted else 1),
    )
