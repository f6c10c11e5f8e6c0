"""A rank's experts as three weights with an axis of experts, each one grouped product (``torch._grouped_mm``).

As torchtitan has them (models/moe/moe.py, GroupedExperts; distributed/expert_parallel.py). Rows of each expert are put
where a tile begins before the products and back behind them. Between ranks the numbers of rows travel first, and the
host waits for them: it has to say how much the exchange of rows sends and receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.aten_products import multiply_groups, rows, turned
from prestep.workloads.torch.modules import Module, gated
from prestep.workloads.torch.tape import Tape, Tensor


class GroupedFeedForward(Module):
    """The feed-forward networks of ``experts`` experts, each split over ``parts`` ranks."""

    def __init__(self, t: Tape, m: ModelSpec, experts: int, parts: int = 1) -> None:
        super().__init__()
        self.activation, self.clamped = m.activation, m.clamped
        ffn = m.moe_ffn // parts
        self.w1 = self.project(t, ffn, m.hidden, "w1", m.bias, experts)
        self.w3: Tensor | None = None
        if m.gated:
            self.w3 = self.project(t, ffn, m.hidden, "w3", m.bias, experts)
        self.w2 = self.project(t, m.hidden, ffn, "w2", m.bias, experts)

    def forward(self, t: Tape, x: Tensor) -> Tensor:
        """Outputs of rows (expert, row, hidden)."""
        t.cpu("module")
        x = moved(t, x)
        first = self._projected(t, x, self.w1)
        second = None if self.w3 is None else self._projected(t, x, self.w3)
        del x
        inner = gated(t, self.activation, first, second, self.clamped)
        del first, second
        return moved(t, self._projected(t, inner, self.w2))

    def _projected(self, t: Tape, x: Tensor, w: Tensor) -> Tensor:
        y = product(t, x, w)
        bias = self.biases.get(w)
        return y if bias is None else with_biases(t, y, bias)


def product(t: Tape, x: Tensor, w: Tensor) -> Tensor:
    """``x[e] @ w[e].T`` of every expert: saves its input, unless the weights are frozen."""
    t.cpu("linear")
    t.saves(x.requires_grad + w.requires_grad)
    kept = x if w.requires_grad else Tensor(None, x.shape, x.itemsize)
    layer = _Product(t, kept, w, x.requires_grad)
    y = t.empty((*x.shape[:-1], w.shape[1]), x.itemsize)
    layer.multiply(rows(t, x), turned(w), y)
    return t.apply(y, [x, w], layer.backward)


@dataclass(frozen=True)
class _Product:
    """A grouped product that has run: what its backward needs, and whether the input needs a gradient."""

    t: Tape
    x: Tensor
    w: Tensor
    needs_x: bool

    def multiply(self, left: Tensor, right: Tensor, y: Tensor) -> Tensor:
        return multiply_groups(self.t, left, right, self.w.shape[0], y)

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the rows and of the weights, the weights' first as those of mm."""
        t = self.t
        t.cpu("linear_backward")
        gw = F.later(t, self.w, partial(self._weight_grad, g))
        if not self.needs_x:
            return [None, gw]
        grad = t.empty(self.x.shape, self.x.itemsize)
        return [self.multiply(rows(t, g), self.w, grad), gw]

    def _weight_grad(self, g: Tensor) -> Tensor:
        """`g` stays alive until it is launched."""
        grad = self.t.empty(self.w.shape, self.x.itemsize)
        return self.multiply(turned(rows(self.t, g)), rows(self.t, self.x), grad)


def moved(t: Tape, x: Tensor) -> Tensor:
    """Rows copied to other places (``x[permuted_indices]``), and their gradients back."""
    shape, itemsize, size = x.shape, x.itemsize, 2 * x.size
    t.cpu("index")
    t.launch(Kernel("aten copy", (x.elements,), layout="strided", bytes=size))

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("index_backward")
        grad = t.empty(shape, itemsize)
        F.launch_elementwise(t, "aten fill", grad.elements, grad.size)
        t.launch(Kernel("aten copy", (grad.elements,), layout="strided", bytes=size))
        return [grad]

    return t.apply(t.empty(shape, itemsize), [x], backward)


def with_biases(t: Tape, x: Tensor, bias: Tensor) -> Tensor:
    """Every expert's bias repeated for its rows and added; its gradient is a sum over them."""
    shape, itemsize = bias.shape, bias.itemsize
    repeated = t.empty(x.shape, itemsize)
    F.elementwise(t, "aten copy", x.elements, x.size + bias.size)
    F.elementwise(t, "aten add", x.elements, 3 * x.size)
    del repeated

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("elementwise_backward")
        t.launch(Kernel("sum", (g.elements,), bytes=g.size))
        return [g, t.empty(shape, itemsize)]

    return t.apply(t.empty(x.shape, x.itemsize), [x, bias], backward)
