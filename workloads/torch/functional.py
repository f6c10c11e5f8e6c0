"""Operators of the symbolic PyTorch: each launches the kernels that eager PyTorch launches.

Kernel lists were read off Kineto traces of PyTorch 2.11 on H200 (``validation/cases/h200``); every
operator says what it saves for backward, because that is what memory is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.torch import aten
from prestep.workloads.torch import aten_products as products
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.torch import reductions, written_out

Step = Callable[[Tape, Tensor], Tensor]


def linear(t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ w.T (+ bias)``, a module of its own, with what an adapter adds to it."""

    def run(x: Tensor) -> Tensor:
        return with_adapter(t, x, w, layer_of(t, x, w, bias))

    return t.call([w] if bias is None else [w, bias], x, run)


def layer_of(t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ w.T (+ bias)`` by a block's layer, without its adapter."""
    # The blocks' layers by Transformer Engine; the head is plain.
    return product(t, x, w, bias, t.products_of(t.layer))


def with_adapter(t: Tape, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """A layer's output ``y`` with that of its adapter for an input, if it has one."""
    adapter = t.adapters.get(w) if t.adapters else None
    return y if adapter is None else adapter.added(t, x, y)


def product(
    t: Tape,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    dtype: str = "",
    summed: Step | None = None,
) -> Tensor:
    """``x @ w.T (+ bias)``: saves its input, unless the weight is frozen; ``summed``: the weight's gradient is."""
    out_features, k = w.shape
    t.cpu("linear")
    t.saves()
    if dtype:
        quantize(t, dtype, x.elements, w.elements)
        launch_quantized(t, x.elements // k, out_features, k, dtype)
        y = t.empty((*x.shape[:-1], out_features), x.itemsize)
    else:
        whole = _whole(t, w)
        y = products.multiply(t, products.rows(t, x), products.turned(whole or w), bias)
        del whole
        y = y.view(*x.shape[:-1], out_features)
    kept = x if w.requires_grad else Tensor(None, x.shape, x.itemsize)
    layer = _Linear(t, kept, w, bias, dtype, x.requires_grad, summed)
    # The input comes first: its gradient is merged before the leaves' hooks run.
    inputs = [x, w] if bias is None else [x, bias, w]
    return t.apply(y, inputs, layer.backward)


@dataclass(frozen=True)
class _Linear:
    """A linear layer that has run: what its backward needs, and whether the input needs a gradient."""

    t: Tape
    x: Tensor
    w: Tensor
    bias: Tensor | None
    dtype: str
    needs_x: bool
    summed: Step | None = None

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the inputs.

        Autograd computes a node's gradients in the alphabetical order of the operator's argument names: mm(self, mat2)
        has the weight's first, addmm(self = bias, mat1, mat2) the input's.
        """
        t = self.t
        t.cpu("linear_backward")
        quantize(t, self.dtype, g.elements)
        weight_grad = partial(self._weight_grad, g)
        if self.bias is None:
            gw = later(t, self.w, weight_grad)
            return [self._data_grad(g), gw]
        gx, gw = self._data_grad(g), later(t, self.w, weight_grad)
        trains = self.bias.requires_grad
        return [gx, self._bias_grad(g, self.bias) if trains else None, gw]

    def _weight_grad(self, g: Tensor) -> Tensor:
        """The gradient of the weight; `g` stays alive until it is launched."""
        t, (out_features, k) = self.t, self.w.shape
        if self.dtype:
            grad = t.empty(self.w.shape, self.x.itemsize)
            launch_quantized(t, out_features, k, self.x.elements // k, self.dtype)
        else:
            of_output = products.turned(products.rows(t, g))
            grad = products.multiply(t, of_output, products.rows(t, self.x))
        return grad if self.summed is None else self.summed(t, grad)

    def _data_grad(self, g: Tensor) -> Tensor | None:
        if not self.needs_x:
            return None
        t, (out_features, k) = self.t, self.w.shape
        whole = _whole(t, self.w)
        if self.dtype:
            grad = t.empty(self.x.shape, self.x.itemsize)
            launch_quantized(t, self.x.elements // k, k, out_features, self.dtype)
            return grad
        grad = products.multiply(t, products.rows(t, g), whole or self.w)
        return grad.view(*self.x.shape)

    def _bias_grad(self, g: Tensor, bias: Tensor) -> Tensor:
        grad = aten.sum_to(self.t, products.rows(self.t, g), bias.shape, "")
        scratch = reductions.row_sum_scratch(g.elements // bias.elements, bias.elements)
        self.t.scratch(scratch)
        return grad


def _whole(t: Tape, w: Tensor) -> Tensor | None:
    """What a product reads of a weight that is kept in four bits, until the product is launched; None: the weight."""
    form = t.four_bits.get(w) if t.four_bits else None
    return None if form is None else form.written_out(t, w)


def later(t: Tape, w: Tensor, weight_grad: Callable[[], Tensor]) -> Tensor | None:
    """The weight gradient now, or put off when only input gradients are wanted (zero-bubble schedules)."""
    if not w.requires_grad:
        return None
    if t.deferred is None:
        return weight_grad()
    t.deferred.append(lambda: t.accumulate(w, weight_grad()))
    return None


def quantize(t: Tape, dtype: str, *elements: int) -> None:
    """Operands of a quantized product: each read in bf16, written as it is and transposed (products take rows only).

    In NVFP4 each is read once more for its scale and rotated (random Hadamard transform): as many bytes as in fp8.
    """
    for n in elements if dtype else ():
        t.cpu("quantize")
        launch_elementwise(t, "fused", n, 4.0 * n)


def launch_quantized(t: Tape, m: int, n: int, k: int, dtype: str) -> None:
    """A product of operands that were quantized, and so lie in rows; its result has 16 bits."""
    moved = 1.0 * (m * k + n * k) + 2.0 * m * n
    t.launch(Kernel("gemm", (m, n, k), dtype, "nt", moved, 2.0 * m * n * k))


def launch_elementwise(t: Tape, kind: str, elements: int, moved: float) -> None:
    """A kernel that moves so many bytes."""
    t.launch(Kernel(kind, (elements,), bytes=moved))


def clamp(t: Tape, x: Tensor) -> Tensor:
    """Elementwise bounds: saves its input, which says where the gradient passes."""
    return _elementwise(t, x, 3.0)


def _elementwise(t: Tape, x: Tensor, passes: float) -> Tensor:
    """An operator that reads and writes an element; backward it moves the tensor's bytes so often."""
    shape, itemsize = x.shape, x.itemsize
    t.cpu("elementwise")
    launch_elementwise(t, "fused", x.elements, 2 * x.size)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("elementwise_backward")
        launch_elementwise(t, "fused", g.elements, passes * g.size)
        _ = x
        return [t.empty(shape, itemsize)]

    return t.apply(t.empty(shape, itemsize), [x], backward)


def gated(t: Tape, kind: str, x: Tensor, factor: Tensor) -> Tensor:
    """An activation times a factor in one kernel, as Inductor makes it: saves both."""
    shape, itemsize = x.shape, x.itemsize
    kind = kind.removesuffix("2")  # the square of a ReLU is one kernel like it
    t.cpu("elementwise")
    t.launch(Kernel(f"fused_{kind}_mul", (x.elements,), bytes=3 * x.size))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("elementwise_backward")
        t.launch(Kernel(f"fused_{kind}_mul_bwd", (g.elements,), bytes=5 * g.size))
        _ = (x, factor)
        return [t.empty(shape, itemsize) for _ in range(2)]

    return t.apply(t.empty(shape, itemsize), [x, factor], backward)


def norm(t: Tape, kind: str, x: Tensor, weights: list[Tensor]) -> Tensor:
    """RMSNorm or LayerNorm over the last axis: saves its input and one statistic per row."""
    if kind == "rms" and t.written_out:
        return written_out.rms_norm(t, x, weights[0])
    rows, cols = x.elements // x.shape[-1], x.shape[-1]
    t.cpu("norm")
    t.saves()
    t.launch(Kernel(f"{kind}_norm_fwd", (rows, cols), bytes=2 * x.size))
    layer = _Norm(t, kind, x, weights, t.empty((rows,), 4))
    return t.apply(t.empty(x.shape, x.itemsize), [x, *weights], layer.backward)


@dataclass(frozen=True)
class _Norm:
    """A norm that has run: what its backward needs."""

    t: Tape
    kind: str
    x: Tensor
    weights: list[Tensor]
    statistics: Tensor

    def _launch(self, part: str, passes: int) -> None:
        """A kernel over all rows that moves the input's bytes so often."""
        rows, cols = self.statistics.elements, self.x.shape[-1]
        self.t.launch(Kernel(part, (rows, cols), bytes=passes * self.x.size))

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the input and the weights."""
        t, kind = self.t, self.kind
        t.cpu("norm_backward")
        trains = self.weights[0].requires_grad
        split = t.deferred is not None
        alone = split or not trains  # the input's gradient
        self._launch(f"{kind}_norm_bwd" + ("_input" if alone else ""), 3)
        early = t.choices is not None and not t.choices.since(2, 7)
        if kind == "layer" and early and trains:
            # The weights' gradient by a kernel of few thread blocks: as long again (fitted, see docs/published.md).
            self._launch("fused", 3)
        gx = t.empty(self.x.shape, self.x.itemsize)
        first, *others = self.weights
        grad = later(t, first, partial(self._weight_grads, split, g))
        if grad is None:
            return [gx, None, *(None for _ in others)]
        return [gx, grad, *(t.empty(w.shape, w.itemsize) for w in others)]

    def _weight_grads(self, split: bool, g: Tensor) -> Tensor:
        """The gradient of the first weight; `split`: by a kernel of its own, until which `g` stays alive."""
        if split:
            self._launch(f"{self.kind}_norm_bwd_weight", 2)
        weight = self.weights[0]
        return self.t.empty(weight.shape, weight.itemsize)


def embedding(t: Tape, ids: tuple[int, int], w: Tensor) -> Tensor:
    """Row lookup, a module."""
    return t.call_by_name([w], lambda: aten.embedding(t, ids, w))


def mse_loss(t: Tape, x: Tensor) -> Tensor:
    """Mean squared error against a target of the same shape: saves its input."""
    t.cpu("loss")
    t.launch(Kernel("mse_loss", (x.elements,), bytes=3 * x.size))
    squares = t.empty(x.shape, x.itemsize)
    t.launch(Kernel("sum", (x.elements,), bytes=x.size))
    del squares

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("loss_backward")
        grad = t.empty(x.shape, x.itemsize)
        launch_elementwise(t, "fill", x.elements, x.size)
        launch_elementwise(t, "mse_backward", x.elements, 4 * x.size)
        return [grad]

    return t.apply(t.empty((1,), x.itemsize), [x], backward)
