"""A rank's experts as three weights with an axis of experts, each one grouped product (``torch._grouped_mm``).

As torchtitan has them (models/moe/moe.py, GroupedExperts; models/moe/utils.py, indices_padding_wrapper;
distributed/expert_parallel.py). Rows of each expert are put where a tile begins before the products and back behind
them. Between ranks the numbers of rows travel first, and the host waits for them: it has to say how much the exchange
of rows sends and receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.operation import Operation
from prestep.workloads.operators.rules import kernels_of
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch import indexing as I
from prestep.workloads.torch.aten_products import batched, multiply_groups, rows, turned
from prestep.workloads.torch.modules import Module, gated
from prestep.workloads.torch.routers import chosen_by_titan, summed
from prestep.workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from prestep.workloads.torch.moe import Beside, MixtureOfExperts

#: Rows of 16 bits that a tile of an expert begins at multiples of, and the kernel that says which row comes where.
TILE, FILL = 8, "triton.triton__fill_indices_kernel.default"


class GroupedFeedForward(Module):
    """The feed-forward networks of ``experts`` experts, each split over ``parts`` ranks."""

    def __init__(self, t: Tape, m: ModelSpec, experts: int, parts: int = 1) -> None:
        super().__init__()
        self.activation, self.clamped = m.activation, m.clamped
        ffn = m.moe_ffn // parts
        self.w1 = self.project(t, ffn, m.hidden, "w1", m.bias, experts)
        self.w2 = self.project(t, m.hidden, ffn, "w2", m.bias, experts)
        self.w3: Tensor | None = None
        if m.gated:
            self.w3 = self.project(t, ffn, m.hidden, "w3", m.bias, experts)

    def mixed(
        self,
        layer: MixtureOfExperts,
        beside: Beside,
        t: Tape,
        logits: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """What the experts that a gate chooses make of tokens, weighted and summed; and what others make of all."""
        # Names stay until the end, as those of MoE.forward do with the memory that they have.
        (tokens, width), count = x.shape, layer.chosen
        weights, chosen = chosen_by_titan(t, logits, count, layer.corrected)
        del logits
        numbers = chosen.view(tokens * count)
        seen = t.table("tokens_per_expert", (layer.experts,), 4)
        I.made(t, "add_.Tensor", (seen, I.counts(t, numbers, layer.experts)))
        t.cpu("module")
        counts, order = I.counts(t, numbers, layer.experts), I.argsort(t, numbers)
        of_rows = I.index(t, aten.reshape(t, weights, tokens * count), order, 1)
        rows = I.index(t, x, I.integer(t, "floor_divide.default", order, count), count)
        if first := count == 1:  # Llama 4
            of_rows = aten.reshape(t, of_rows, tokens, 1)
            rows = aten.to(t, aten.mul(t, aten.to(t, rows, 4), of_rows), x.itemsize)
        routed = layer.gathered(rows, partial(self._exchanged, t, layer, counts))
        other, kind = beside(), routed.operand.dtype
        shape = routed.shape
        y = I.made(t, "zeros.default", (shape,), shape, kind, dtype=kind)
        y = aten.reshape(t, I.put(t, routed, order, y, 1), tokens, count, width)
        if first:
            return summed(t, y, 1, keep=False), other
        y = batched(t, aten.reshape(t, weights, tokens, 1, count), aten.to(t, y, 4))
        return aten.reshape(t, aten.to(t, y, x.itemsize), tokens, width), other

    def _exchanged(
        self, t: Tape, layer: MixtureOfExperts, counts: Tensor, rows: Tensor
    ) -> Tensor:
        """Outputs of rows, which go to the ranks of their experts and back."""
        counts = layer.told(t, counts)
        return layer.exchange(t, self.forward(t, layer.exchange(t, rows), counts))

    def forward(self, t: Tape, x: Tensor, counts: Tensor) -> Tensor:
        """Outputs of rows that are sorted by rank and expert, of which each has so many."""
        count = x.shape[0]
        t.cpu("module")
        with t.no_grad():
            order, sizes = permutation(t, counts, count, self.w1.shape[0])
        x = I.index(t, with_zeros(t, x), order, 0)
        I.made(t, "cumsum.default", (sizes, 0), dtype="int32")
        # Experts have as many rows each.
        run = partial(self._projected, t, rows=sizes.elements * _places(count, sizes))
        first = run(x, self.w1)
        if self.clamped or t.compiles or self.w3 is None:
            second = None if self.w3 is None else run(x, self.w3)
            inner = gated(t, self.activation, first, second, self.clamped)
            del second
        else:
            inner = aten.activation(t, self.activation, first)
            inner = aten.mul(t, inner, run(x, self.w3))
        del first, x
        y = run(inner, self.w2)
        y = I.put(t, y, order, t.empty((1 + count, *y.shape[1:]), y.itemsize))
        return aten.part(t, y, 0, -1, 0)

    def _projected(self, t: Tape, x: Tensor, w: Tensor, rows: int) -> Tensor:
        y = product(t, x, w, rows)
        bias = self.biases.get(w)
        return y if bias is None else with_biases(t, y, bias)


def product(
    t: Tape, x: Tensor, w: Tensor, taken: int = 0, as_it_lies: bool = False
) -> Tensor:
    """``x[e] @ w[e].T`` of every expert, or ``x[e] @ w[e]``: saves its input, unless the weights are frozen.

    `taken`: the experts' rows, where others follow that are nobody's; 0: all.
    """
    t.cpu("linear")
    t.saves(x.requires_grad + w.requires_grad)
    kept = x if w.requires_grad else Tensor(None, x.shape, x.itemsize)
    layer = _Product(t, kept, w, x.requires_grad, taken, as_it_lies)
    ahead = w if as_it_lies else turned(w)
    y = t.empty((*x.shape[:-1], ahead.shape[-1]), x.itemsize)
    layer.multiply(rows(t, x), ahead, y)
    return t.apply(y, [x, w], layer.backward)


@dataclass(frozen=True)
class _Product:
    """A grouped product that has run: what its backward needs, and whether the input needs a gradient."""

    t: Tape
    x: Tensor
    w: Tensor
    needs_x: bool
    taken: int
    as_it_lies: bool

    def multiply(self, left: Tensor, right: Tensor, y: Tensor) -> Tensor:
        experts = self.w.shape[0]
        return multiply_groups(self.t, left, right, experts, y, self.taken)

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """Gradients of the rows and of the weights, the weights' first as those of mm."""
        t = self.t
        t.cpu("linear_backward")
        gw = F.later(t, self.w, partial(self._weight_grad, g))
        if not self.needs_x:
            return [None, gw]
        grad = t.empty(self.x.shape, self.x.itemsize)
        back = turned(self.w) if self.as_it_lies else self.w
        return [self.multiply(rows(t, g), back, grad), gw]

    def _weight_grad(self, g: Tensor) -> Tensor:
        """`g` stays alive until it is launched."""
        grad = self.t.empty(self.w.shape, self.x.itemsize)
        left, right = rows(self.t, g), rows(self.t, self.x)
        if self.as_it_lies:
            left, right = right, left
        return self.multiply(turned(left), right, grad)


def permutation(
    t: Tape, counts: Tensor, rows: int, experts: int
) -> tuple[Tensor, Tensor]:
    """Where the rows of experts begin at multiples of a tile (torchtitan's generate_permute_indices).

    `counts` has what each rank sends to each expert. Returns which row comes to which place, -1 where none does, and
    how many places each expert has.
    """
    ranks = counts.elements // experts
    begin = I.made(t, "cumsum.default", (counts, 0))
    begin = I.made(t, "sub.Tensor", (begin, counts))
    total = I.sums(t, counts.view(ranks, experts), 0)
    total = I.made(t, "clamp_min.default", (total, TILE))
    for name, number in (
        ("add", TILE),
        ("sub", 1),
        ("floor_divide", TILE),
        ("mul", TILE),
    ):
        overload = "default" if name == "floor_divide" else "Tensor"
        total = I.made(t, f"{name}.{overload}", (total, number))
    sizes = I.made(t, "_to_copy.default", (total,), kind="int32", dtype="int32")
    ends = I.made(t, "cumsum.default", (sizes, 0), kind="int64")
    where = I.made(t, "sub.Tensor", (ends, sizes), kind="int64")
    places = -(-(rows + experts * TILE) // TILE) * TILE
    order = I.made(
        t, "full.default", ((places,), -1), (places,), "int32", dtype="int32"
    )
    reads = counts, begin, where, order
    fill = Operation(FILL, tuple(each.operand for each in reads), (), ())
    t.operate(fill, kernels_of, reads)
    I.made(t, "_to_copy.default", (ends,), kind="int32", dtype="int32")
    return order, sizes


def _places(rows: int, sizes: Tensor) -> int:
    """Places of each expert where all have the same number of rows."""
    each = max(TILE, -(-rows // sizes.elements))
    return -(-each // TILE) * TILE


def with_zeros(t: Tape, x: Tensor) -> Tensor:
    """A row of zeros behind the others, for places that no row comes to."""
    count, width = x.shape
    zeros = t.empty((width,), x.itemsize)
    aten.call(t, kernels_of, "new_zeros.default", (x, (width,)), zeros)
    t.cpu("view")
    y, parts = t.empty((count + 1, width), x.itemsize), [x, zeros.view(1, width)]
    aten.call(t, kernels_of, "cat.default", (parts,), y)

    def backward(g: Tensor) -> list[Tensor | None]:
        t.cpu("view_backward", 2)
        return [aten.view(g, (count, width), (width, 1))]

    return t.apply(y, [x], backward)


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
