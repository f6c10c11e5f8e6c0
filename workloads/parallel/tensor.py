"""Tensor parallelism as PyTorch's DTensor does it: column then row sharding inside a block.

Each column-parallel projection all-reduces its own input gradient in backward (DTensor does not merge the
three of q, k and v); each row-parallel one all-reduces its output in forward. Functional collectives work
on a copy. With sequence parallelism the all-reduce becomes an all-gather before and a reduce-scatter after, and
between them, norms and residual additions included, each rank holds its part of the sequence; the small all-reduces of
the norms' weight gradients are left out, and those of the gate of experts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from prestep.sim.graph.kernel import Kernel
from prestep.workloads.exchanges.tensor import (
    Product,
    Scatter,
    begin,
    exchange,
    finish,
    gathered_product,
    scattered_product,
)
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch import aten
from prestep.workloads.torch import functional as F
from prestep.workloads.torch.adapter import Exchanges
from prestep.workloads.torch.aten_products import multiply, multiply_sizes, rows, turned
from prestep.workloads.torch.block import BlockParallel, Norm
from prestep.workloads.torch.latent_attention import LatentAttention, Whole
from prestep.workloads.torch.modules import FeedForward, Linear, Module
from prestep.workloads.torch.moe import MixtureOfExperts
from prestep.workloads.torch.recorder import BACKWARD
from prestep.workloads.torch.tape import Tape, Tensor

if TYPE_CHECKING:
    from prestep.workloads.models.model import ModelSpec

#: Weights whose columns are split over ranks; and those of latent attention that are, by heads.
ROWS, EXPANDING = ("wo", "w2"), ("wq", "wq_b", "wkv_b")
Redistribute = Callable[[Tape, Tensor], Tensor]


class TensorParallel(BlockParallel):
    """Sharded projections over a group of tensor-parallel ranks."""

    def __init__(
        self,
        group: Group,
        sequence: bool = False,
        experts: Group | None = None,
        whole_experts: bool = False,
        vocabulary: str = "whole",
    ) -> None:
        self.vocabulary = vocabulary
        self.vocabulary_shards = 1 if vocabulary == "whole" else group.size
        self.group, self.shards, self.sequence = group, group.size, sequence
        self.experts, self.whole_experts = experts, whole_experts
        self.whole_projections = Whole(self.gathered, self.spread)

    def column(
        self, t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """``x`` replicated, ``w`` split by rows; the input's gradient is summed over ranks."""
        t.cpu("dtensor_linear")
        y = F.of_dtensors(t, F.layer_of(t, self._enter(t, x), w, bias))
        return F.with_adapter(t, x, w, y)

    def row(self, t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x`` and ``w`` split along the contraction; the output, each rank's share of the bias in it, is summed."""
        t.cpu("dtensor_linear")
        y = self.summed(t, F.of_dtensors(t, F.layer_of(t, x, w, bias)))
        return F.with_adapter(t, x, w, y)

    def adapter(self, module: Module, w: Tensor, later: bool) -> Exchanges:
        """As PEFT shares it: the thin value travels by itself, unless the layer's output and gradient are summed later.

        Where a matrix is whole on every rank, and each has a part of its gradient, those are summed.
        """
        row, total = w.name in ROWS, self._all_reduce
        latent = isinstance(module, LatentAttention) and not row
        if latent and w.name not in EXPANDING:
            return Exchanges()
        if later or latent:
            return Exchanges(out=total) if row else Exchanges(into=total)
        parts = total if self.sequence else None
        if row:
            return Exchanges(self._thin_summed, out=parts)
        return Exchanges(self.whole, into=parts)

    def _thin_summed(self, t: Tape, z: Tensor) -> Tensor:
        """A row's thin value, of which a split product made a part."""
        t.cpu("dtensor_linear")
        return self.summed(t, z)

    def whole(self, t: Tape, x: Tensor) -> Tensor:
        """``x`` as a layer with no collectives of its own wants it; the input's gradient is summed over ranks."""
        t.cpu("dtensor_linear")
        return self._enter(t, x)

    def gathered(self, t: Tape, x: Tensor) -> Tensor:
        """``x`` of all tokens, for layers that every rank has whole: each keeps its tokens' part of the gradient."""
        return self._resplit(t, x, self._gather, self._split) if self.sequence else x

    #: The norm and head that every rank has in full see the whole sequence again.
    leave = gathered

    def spread(self, t: Tape, x: Tensor) -> Tensor:
        """``x`` of all tokens, which split layers take: its gradient is summed over ranks, for all tokens."""
        t.cpu("dtensor_linear")
        return self._resplit(t, x, _as_it_is, self._all_reduce)

    def summed(self, t: Tape, y: Tensor) -> Tensor:
        """The sum of all ranks' ``y``; the gradient is whole on each."""
        back = self._gather if self.sequence else lambda t, g: g
        return self._resplit(t, y, self._reduce, back)

    def _enter(self, t: Tape, x: Tensor) -> Tensor:
        into = self._gather if self.sequence else _as_it_is
        enter = partial(self._resplit, t, x, into, self._reduce)
        # Of equal exchanges a compiler makes one; the gradients' sums differ, unless one module gathers for all
        # (torchtitan's plan, PrepareModuleInput).
        return t.once(x, enter) if self.sequence else enter()

    def _reduce(self, t: Tape, y: Tensor) -> Tensor:
        if not self.sequence:
            return self._all_reduce(t, y)
        b, s, h = y.shape
        if not t.traces or b > 1:  # a compiler sends one sample's tokens as they lie
            _copy(t, y)
        copy = t.empty(y.shape, y.itemsize)
        begin(t, "reduce_scatter", y.size, self.group)
        out = t.empty((b, s // self.group.size, h), y.itemsize)
        del copy
        finish(t)
        return out

    def _all_reduce(self, t: Tape, y: Tensor) -> Tensor:
        if not t.traces:  # a compiler sums in place
            _copy(t, y)
        out = t.empty(y.shape, y.itemsize)
        exchange(t, "all_reduce", y.size, self.group)
        return out

    def _gather(self, t: Tape, x: Tensor) -> Tensor:
        b, s, h = x.shape
        out = t.empty((b, s * self.group.size, h), x.itemsize)
        exchange(t, "all_gather", out.size, self.group)
        if b == 1:
            return out
        # Part after part: torch.cat puts them beside each other for every sample (_functional_collectives.py).
        t.cpu("elementwise_nograd")
        t.launch(Kernel("aten cat", (out.elements,), bytes=2 * out.size))
        return t.empty(out.shape, out.itemsize)

    def enter(self, t: Tape, x: Tensor) -> Tensor:
        """With sequence parallelism each rank keeps its part of the sequence; the gradient is gathered again."""
        return self._resplit(t, x, self._split, self._gather) if self.sequence else x

    def looked_up(self, t: Tape, x: Tensor) -> Tensor:
        """Tokens of other ranks' rows are masked, and the ranks' results are summed (DTensor's MaskPartial)."""
        if self.vocabulary_shards == 1:
            return x
        t.cpu("elementwise")
        t.launch(Kernel("fused", (x.elements,), bytes=2 * x.size))
        return self.summed(t, x)

    def logits(
        self, t: Tape, x: Tensor, norm: Norm, head: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Split: each rank norms its part of the sequence, and has the logits of its part of the vocabulary."""
        if self.vocabulary_shards == 1:
            return super().logits(t, x, norm, head, bias)
        part = self.column(t, norm.forward(t, x), head, bias)
        return part if self.vocabulary == "split" else self.columns(t, part)

    def columns(self, t: Tape, x: Tensor) -> Tensor:
        """All columns of ``x``: parts are gathered and put beside each other; a gradient is cut again."""
        *rows, width = x.shape
        t.cpu("dtensor_linear")
        out = t.empty((*rows, width * self.group.size), x.itemsize)
        exchange(t, "all_gather", out.size, self.group)
        t.cpu("elementwise_nograd")
        t.launch(Kernel("aten cat", (out.elements,), bytes=2 * out.size))
        out = t.empty(out.shape, out.itemsize)

        def backward(g: Tensor) -> list[Tensor | None]:
            t.cpu("dtensor_backward")
            part = t.empty((*rows, width), g.itemsize)
            t.launch(Kernel("aten copy", (part.elements,), bytes=2 * part.size))
            return [part]

        return t.apply(out, [x], backward)

    def _resplit(
        self, t: Tape, x: Tensor, forward: Redistribute, back: Redistribute
    ) -> Tensor:
        def backward(g: Tensor) -> list[Tensor | None]:
            t.cpu("dtensor_backward")
            return [back(t, g)]

        if forward is not _as_it_is:
            t.cpu("dtensor_exchange")
        return t.apply(forward(t, x), [x], backward)

    def _split(self, t: Tape, x: Tensor) -> Tensor:
        b, s, h = x.shape
        out = t.empty((b, s // self.group.size, h), x.itemsize)
        t.launch(Kernel("aten copy", (out.elements,), bytes=2 * out.size))
        return out

    def feed_forward(  # type: ignore[no-untyped-def]
        self, t: Tape, m: ModelSpec, experts: bool
    ):
        if experts and self.whole_experts:
            return WholeExperts(t, m, self.experts, self)
        if experts:
            return SplitExperts(t, m, self.experts, self)
        return FeedForward(t, m, self.shards)


def _copy(t: Tape, y: Tensor) -> None:
    """What a sum works on."""
    t.cpu("elementwise_backward" if t.phase == BACKWARD else "elementwise")
    t.launch(Kernel("aten copy", (y.elements,), bytes=2 * y.size))


def _as_it_is(t: Tape, x: Tensor) -> Tensor:
    """The same value, without history."""
    y = x.view(*x.shape)
    y.node = None
    return y


class Asynchronous(TensorParallel):
    """Products in parts beside their exchange, as torch.distributed._symmetric_memory has them.

    A column's input is gathered beside its product (`fused_all_gather_matmul`), and so is the gradient of a row's
    output; a row's output is scattered beside its own (`fused_matmul_reduce_scatter`), and so is the gradient of a
    column's input. Copy engines pull every part from the rank that has it, or push it where its sum is made.
    """

    def column(
        self, t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        return self._layer(t, x, w, bias, True)

    def row(self, t: Tape, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._layer(t, x, w, bias, False)

    def _layer(
        self, t: Tape, x: Tensor, w: Tensor, bias: Tensor | None, gathers: bool
    ) -> Tensor:
        """A projection that `gathers` its input and scatters its gradient, or the other way round of its output."""
        t.cpu("dtensor_linear")
        t.saves(x.requires_grad + w.requires_grad)
        if gathers:
            whole, y = self._gathered(t, x, w.shape[::-1], "nt")
        else:
            whole, y = x, self._scattered(t, x, w.shape[::-1], "nt")
        kept = whole if w.requires_grad else Tensor(None, whole.shape, whole.itemsize)
        del whole

        def backward(g: Tensor) -> list[Tensor | None]:
            t.cpu("dtensor_backward")
            if gathers:
                grad = self._scattered(t, g, w.shape, "nn")
            else:
                g, grad = self._gathered(t, g, w.shape, "nn")
            product = partial(multiply, t, turned(rows(t, g)), rows(t, kept))
            return [grad, F.later(t, w, product)]

        y = F.of_dtensors(t, t.apply(y, [x, w], backward))
        return y if bias is None else aten.add(t, y, bias)

    def _gathered(
        self, t: Tape, x: Tensor, sizes: tuple[int, ...], layout: str
    ) -> tuple[Tensor, Tensor]:
        """All ranks' `x`, and its product with a weight of `sizes` (inner, outer), a rank's rows after another's."""
        (b, s, h), (k, n) = x.shape, sizes
        t.launch(
            Kernel("aten copy", (x.elements,), bytes=2 * x.size)
        )  # into shared memory
        whole = t.empty((b, s * self.group.size, h), x.itemsize)
        rows = whole.elements // k
        product = _product(t, n, k, layout)
        gathered_product(t, self.group, whole.size, rows, product)
        return whole, t.empty((b, s * self.group.size, n), x.itemsize)

    def _scattered(
        self, t: Tape, x: Tensor, sizes: tuple[int, ...], layout: str
    ) -> Tensor:
        """This rank's rows of the sum of all ranks' products of `x`, with a weight of `sizes` (inner, outer)."""
        (b, s, _), (k, n) = x.shape, sizes
        parts = t.empty((b, s, n), x.itemsize)  # of every rank
        product = _product(t, n, k, layout)
        scattered_product(t, self.group, COPIES, x.elements // k, n, product)
        y = t.empty((b, s // self.group.size, n), x.itemsize)
        del parts
        return y


#: Products are cut by ranks, and copy engines leave all SMs to them.
COPIES = Scatter(0, 0)


def _product(t: Tape, n: int, k: int, layout: str) -> Product:
    """A product of some rows, which the host launches by itself."""

    def run(rows: int, _: int) -> None:
        t.cpu("linear")
        multiply_sizes(t, rows, n, k, layout)

    return run


class SplitExperts(MixtureOfExperts):
    """Experts each of which is split over tensor-parallel ranks, as torchtitan does it.

    Every rank routes all tokens through its part of the experts; the results are summed once, after they are back in
    the order of the tokens.
    """

    def __init__(
        self, t: Tape, m: ModelSpec, group: Group | None, parallel: TensorParallel
    ) -> None:
        super().__init__(t, m, group, parallel.shards)
        self.parallel = parallel

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        routed = super().forward(t, self.parallel.whole(t, x))
        return self.parallel.summed(t, routed)


class WholeExperts(MixtureOfExperts):
    """Experts that lie whole on ranks, those of a tensor-parallel group among them, as torchtitan spreads them.

    Every rank routes its own part of the sequence, and nothing of it is gathered. Experts that see every token are
    split as other feed-forward layers are (torchtitan, models/common/moe_sharding.py).
    """

    def __init__(
        self, t: Tape, m: ModelSpec, group: Group | None, parallel: TensorParallel
    ) -> None:
        self.parallel = parallel
        super().__init__(t, m, group)

    def forward(
        self, t: Tape, x: Tensor, column: Linear = F.linear, row: Linear = F.linear
    ) -> Tensor:
        return super().forward(t, x)  # whole weights' products are local

    def _shared(self, t: Tape, m: ModelSpec, parts: int) -> FeedForward:
        return super()._shared(t, m, self.parallel.shards)

    def _seen_by_all(
        self, t: Tape, shared: FeedForward, x: Tensor, shape: tuple[int, ...]
    ) -> Tensor:
        rows = x.shape
        gathered = self.parallel.whole(t, aten.reshape(t, x, *shape))
        y = super()._seen_by_all(t, shared, gathered, gathered.shape)
        return aten.reshape(t, self.parallel.summed(t, y), *rows)


class ExpertParallel(BlockParallel):
    """Blocks whose experts are spread over a group of data-parallel ranks."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def feed_forward(
        self, t: Tape, m: ModelSpec, experts: bool
    ) -> MixtureOfExperts | FeedForward:
        return MixtureOfExperts(t, m, self.group) if experts else FeedForward(t, m)
