"""Operators of the symbolic PyTorch: each launches the kernels that eager PyTorch launches.

Kernel lists were read off Kineto traces of PyTorch 2.11 on H200 (``lab/cases/h200``); every
operator says what it saves for backward, because that is what memory is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from prestep.sim.extras import lazily
from prestep.sim.graph.kernel import Kernel
from prestep.workloads.operators import norms
from prestep.workloads.torch import aten
from prestep.workloads.torch import aten_products as products
from prestep.workloads.torch.recorder import BACKWARD
from prestep.workloads.torch.tape import Tape, Tensor

with lazily():
    from prestep.workloads.torch import quantized, written_out

Step = Callable[[Tape, Tensor], Tensor]

WIDE = 4  # bytes of an element in fp32
AGAIN = "saved_tensor_again"  # what hooks of a region cost that runs again
#: Operators of norms, how many statistics of a row they keep in fp32 (and weights they have), and their epsilon.
RMS = "_fused_rms_norm", 1, None
NORMS = {
    **dict.fromkeys(("rms", "rms-centred"), RMS),
    "layer": ("native_layer_norm", 2, 1e-5),
}


def linear(t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ w.T (+ bias)``, a module of its own, with what an adapter adds to it."""

    def run(x: Tensor) -> Tensor:
        return with_adapter(t, x, w, layer_of(t, x, w, bias))

    return t.call([w] if bias is None else [w, bias], x, run)


def layer_of(t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ w.T (+ bias)`` by a block's layer, without its adapter."""
    # The blocks' layers by Transformer Engine; the head is plain.
    return product(t, x, w, bias, t.products_of(t.layer))


def of_dtensors(t: Tape, y: Tensor) -> Tensor:
    """The output of a product of DTensors, whose gradient costs the host as much as a product's forward does."""
    if y.node is not None:
        y.node.hooks.append(partial(t.cpu, "dtensor_linear_backward"))
    return y


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
    if dtype and t.traces:
        return quantized.product(t, x, w, bias, dtype)
    out_features, k = w.shape
    t.cpu("linear")
    t.cpu("view", 2 * (len(x.shape) > 2))  # to rows and back
    t.saves(x.requires_grad + w.requires_grad)
    if dtype:
        quantize(t, dtype, x.elements, w.elements)
        layout = products.forward_layout(dtype)
        products.multiply_narrow(t, x.elements // k, out_features, k, dtype, layout)
        y = t.empty((*x.shape[:-1], out_features), x.itemsize)
    else:
        whole = _whole(t, w)
        y = products.multiply(t, products.rows(t, x), products.turned(whole or w), bias)
        del whole
        y = y.view(*x.shape[:-1], out_features)
    kept = x if w.requires_grad else Tensor(None, x.shape, x.itemsize)
    packed = t.hooked == AGAIN
    layer = _Linear(t, kept, w, bias, dtype, x.requires_grad, summed, packed)
    # The input comes first: its gradient is merged before the leaves' hooks run.
    inputs = [x, w] if bias is None else [x, bias, w]
    return t.apply(y, inputs, layer.backward)


@dataclass
class _Linear:
    """A linear layer that has run: what its backward needs, and whether the input needs a gradient.

    `packed`: a checkpoint's hooks hold what it saves, and let go as the products have it, before the bias is summed.
    """

    t: Tape
    x: Tensor
    w: Tensor
    bias: Tensor | None
    dtype: str
    needs_x: bool
    summed: Step | None = None
    packed: bool = False

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the inputs.

        Autograd computes a node's gradients in the alphabetical order of the operator's argument names: mm(self, mat2)
        has the weight's first, addmm(self = bias, mat1, mat2) the input's.
        """
        t = self.t
        t.cpu("linear_backward")
        t.cpu("view_backward", 2 * (len(g.shape) > 2))
        quantize(t, self.dtype, g.elements)
        weight_grad = partial(self._weight_grad, g)
        if self.bias is None:
            gw = later(t, self.w, weight_grad)
            return [self._data_grad(g), gw]
        gx, gw = self._data_grad(g), later(t, self.w, weight_grad)
        if self.packed and t.deferred is None:
            self.x = Tensor(None, self.x.shape, self.x.itemsize)
        trains = self.bias.requires_grad
        return [gx, self._bias_grad(g, self.bias) if trains else None, gw]

    def _weight_grad(self, g: Tensor) -> Tensor:
        """The gradient of the weight; `g` stays alive until it is launched."""
        t, (out_features, k) = self.t, self.w.shape
        if self.dtype:
            grad = t.empty(self.w.shape, self.x.itemsize)
            products.multiply_narrow(
                t, out_features, k, self.x.elements // k, self.dtype
            )
        else:
            of_output = products.turned(products.rows(t, g))
            grad = products.multiply(t, of_output, products.rows(t, self.x))
            grad.is_view = True  # a transpose's gradient is one
        return grad if self.summed is None else self.summed(t, grad)

    def _data_grad(self, g: Tensor) -> Tensor | None:
        if not self.needs_x:
            return None
        t, (out_features, k) = self.t, self.w.shape
        whole = _whole(t, self.w)
        if self.dtype:
            grad = t.empty(self.x.shape, self.x.itemsize)
            products.multiply_narrow(
                t, self.x.elements // k, k, out_features, self.dtype
            )
            return grad
        grad = products.multiply(t, products.rows(t, g), whole or self.w)
        return grad.view(*self.x.shape)

    def _bias_grad(self, g: Tensor, bias: Tensor) -> Tensor:
        grad = aten.sum_to(self.t, products.rows(self.t, g), bias.shape)
        grad.is_view = True  # of a sum that kept its rows' dimension
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


def launch_elementwise(t: Tape, kind: str, elements: int, moved: float) -> None:
    """A kernel that moves so many bytes."""
    t.launch(Kernel(kind, (elements,), bytes=moved))


def launched(
    t: Tape,
    inputs: list[Tensor],
    shape: tuple[int, ...],
    ahead: Callable[[], object],
    back: Callable[[], object],
    saved: Sequence[Tensor] = (),
) -> Tensor:
    """A new value by what ``ahead`` launches, and the inputs' gradients by what ``back`` does.

    ``saved`` stays until then; what the two functions hold, too.
    """
    sizes = [(x.shape, x.itemsize) for x in inputs]
    y = t.empty(shape, inputs[0].itemsize)
    ahead()

    def backward(g: Tensor) -> list[Tensor | None]:
        _ = (g, saved)
        back()
        return [t.empty(*size) for size in sizes]

    return t.apply(y, inputs, backward)


def elementwise(t: Tape, kind: str, elements: int, moved: float) -> None:
    """The same for an operator that no rule knows, which the host calls."""
    t.cpu("elementwise_backward" if t.phase == BACKWARD else "elementwise")
    launch_elementwise(t, kind, elements, moved)


def clamp(t: Tape, x: Tensor) -> Tensor:
    """Elementwise bounds: saves its input, which says where the gradient passes."""
    over = partial(elementwise, t, "fused", x.elements)
    t.saves(x.requires_grad)
    ahead, back = (partial(over, tensors * x.size) for tensors in (2, 3))
    return launched(t, [x], x.shape, ahead, back, [x])


def xielu(t: Tape, curve: Sequence[Tensor], x: Tensor) -> Tensor:
    """Apertus's activation in one kernel each way, as its extension for CUDA: saves its input.

    Its ``curve`` is two trained numbers, of positive and of negative inputs, whose gradients are sums over all.
    """
    over = partial(elementwise, t, "fused", x.elements)
    t.saves(1 + len(curve))
    ahead, back = (partial(over, tensors * x.size) for tensors in (2, 3))
    return launched(t, [x, *curve], x.shape, ahead, back, [x])


def gated(t: Tape, kind: str, x: Tensor, factor: Tensor) -> Tensor:
    """An activation times a factor in one kernel, as Inductor makes it: saves both."""
    kind = kind.removesuffix("2")  # the square of a ReLU is one kernel like it
    forward, size = f"fused_{kind}_mul", x.size
    over = partial(elementwise, t, elements=x.elements)
    t.saves(2)
    ahead = partial(over, forward, moved=3 * size)
    back = partial(over, f"{forward}_bwd", moved=5 * size)
    return launched(t, [x, factor], x.shape, ahead, back, [x, factor])


def norm(
    t: Tape, kind: str, x: Tensor, weights: list[Tensor], least: float | None = None
) -> Tensor:
    """RMSNorm or LayerNorm over the last axis: saves its input and the statistics of each row."""
    if kind != "layer" and t.written_out:
        return written_out.rms_norm(t, x, weights[0], kind == "rms-centred")
    name, count, usual = NORMS[kind]
    t.cpu("norm")
    t.cpu("view", kind != "layer")  # its statistics are detached as they are saved
    t.saves(1 + count + len(weights))
    y = t.empty(x.shape, x.itemsize)
    statistics = [t.empty((*x.shape[:-1], 1), WIDE) for _ in range(count)]
    padded = (*weights, *(None,) * (count - len(weights)))
    arguments = x, x.shape[-1:], *padded, least or usual
    aten.call(t, norms.forward, f"{name}.default", arguments, y, *statistics)
    layer = _Norm(t, name, x, padded, statistics, x.requires_grad)
    return t.apply(y, [x, *weights], layer.backward)


@dataclass(frozen=True)
class _Norm:
    """A norm that has run: what its backward needs, and whether the input needs a gradient."""

    t: Tape
    name: str
    x: Tensor
    weights: tuple[Tensor | None, ...]
    statistics: list[Tensor]
    needs_x: bool

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the input and the weights, which zero-bubble schedules put off."""
        t = self.t
        trained = [w is not None and w.requires_grad for w in self.weights]
        if t.deferred is None or not any(trained):
            return self._gradients(g, [self.needs_x, *trained])
        t.deferred.append(partial(self._accumulate, g, trained))
        return self._gradients(g, [self.needs_x, *(False for _ in trained)])

    def _gradients(self, g: Tensor, mask: list[bool]) -> list[Tensor | None]:
        """Those that the mask asks for, by one operation."""
        t, x, weights = self.t, self.x, self.weights
        if not any(mask):
            return [None] * len(mask)
        pairs = [(w, take) for w, take in zip((x, *weights), mask, strict=True) if w]
        grads = [t.empty(w.shape, w.itemsize) if take else None for w, take in pairs]
        arguments = (g, x, x.shape[-1:], *self.statistics, *weights, mask)
        name, results = f"{self.name}_backward.default", filter(None, grads)
        aten.call(t, norms.backward, name, arguments, next(results), *results)
        if len(mask) > 2 and any(mask[1:]) and t.choices and not t.choices.since(2, 7):
            # The weights' gradient by a kernel of few thread blocks: as long again (fitted: lab/notes/published.md).
            launch_elementwise(t, "fused", x.elements, 3 * x.size)
        return grads

    def _accumulate(self, g: Tensor, trained: list[bool]) -> None:
        """Makes the gradients of the weights; until now the output's stayed alive."""
        _, *grads = self._gradients(g, [False, *trained])
        for w, grad in zip(self.weights, grads, strict=False):
            if w is not None and grad is not None:
                self.t.accumulate(w, grad)


def embedding(t: Tape, ids: tuple[int, int], w: Tensor) -> Tensor:
    """Row lookup, a module."""
    t.cpu("embedding")
    return t.call_by_name([w], lambda: aten.embedding(t, ids, w))
