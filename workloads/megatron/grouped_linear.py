"""Projections of experts: several weights, each with rows of its own (megatron/core/transformer/moe/experts.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from prestep.sim.graph.kernel import product
from prestep.workloads.megatron.elementwise import pass_over, unsaved
from prestep.workloads.megatron.gemm import Numbers, later, quantize
from prestep.workloads.megatron.linear import gradient_of, saved
from prestep.workloads.torch.aten_products import multiply_group_sizes, multiply_sizes
from prestep.workloads.torch.tape import Tape, Tensor

# Rows of an expert are computed in whole tiles: grouped GEMMs of CUTLASS and cuBLAS begin a tile for every expert.
TILE = 128
# Products of experts one after the other on a few streams, over one product of all rows: in bf16 1.2 (A100) and 1.4
# (B200, of small experts 1.3 to 1.6), measured by SimuMax; for fp8 a guess.
GROUPED = 1.25


@dataclass(frozen=True)
class GroupedLinear:
    """Products of a rank's experts.

    Attributes
    ----------
    counts : sequence of float
        Rows of each local expert.
    numbers : Numbers
        Types of operands and gradients.
    grouped : bool
        One grouped GEMM computes all experts; else one GEMM after the other.
    single : bool
        The GEMMs are single kernels with epilogues of their own.
    """

    counts: Sequence[float]
    numbers: Numbers
    grouped: bool
    single: bool

    @property
    def rows(self) -> list[int]:
        """Whole rows of each local expert."""
        return [max(1, round(count)) for count in self.counts]

    @property
    def groups(self) -> list[list[int]]:
        """Rows of the experts that one launch computes."""
        return [self.rows] if self.grouped else [[count] for count in self.rows]

    def linear(
        self,
        t: Tape,
        x: Tensor,
        w: Tensor,
        casts: tuple[bool, bool],
        bias: Tensor | None = None,
    ) -> Tensor:
        """``x[rows of e] @ w[e].T`` for every local expert e.

        ``casts``: whether the operands of the forward and of the backward pass are quantized here, in fp8.
        ``bias``: one that the products add themselves, and whose gradient they make.
        """
        experts, n, k = w.shape
        t.cpu("linear", len(self.groups))
        t.cpu("grouped_gemm", experts if self.grouped else 0)
        if casts[0]:
            self._quantize(t, k)
        for rows in self.groups:
            self._product(t, rows, n, k, "nt")
        y = t.empty((*x.shape[:-1], n), x.itemsize)
        kept = saved(t, x, w, self.numbers)
        biases = [] if bias is None else [bias]
        return t.apply(
            y,
            [unsaved(x), w, *biases],
            lambda g: [
                *self._backward(t, g, kept, w, casts[1]),
                *map(gradient_of, biases),
            ],
        )

    def _backward(
        self, t: Tape, g: Tensor, x: Tensor, w: Tensor, casts: bool
    ) -> list[Tensor | None]:
        """Gradients of the rows and of the weights."""
        experts, n, k = w.shape
        t.cpu("linear_backward", len(self.groups))
        t.cpu("grouped_gemm", 2 * experts if self.grouped else 0)
        if casts:
            self._quantize(t, n)
        grad = t.empty(x.shape, x.itemsize)
        for rows in self.groups:
            self._product(t, rows, k, n, "nn")
            if w.requires_grad:
                product = partial(self._product, t, rows, n, k, "tn")
                later(t, product, (g, x), self.numbers)
        if w.requires_grad and not self.numbers.fused_accumulation:
            later(t, partial(self._accumulate, t, w.elements), ())
        return [grad, gradient_of(w)]

    def _quantize(self, t: Tape, width: int) -> None:
        """In fp8 each expert's rows have a scale of their own: one call finds and applies all (tex.split_quantize)."""
        if not self.numbers.products:
            return
        for at, count in enumerate(self.rows):
            elements = count * width
            pass_over(t, elements, 2.0 * elements)
            quantize(t, elements, self.numbers, calls=not (self.grouped and at))

    def _accumulate(self, t: Tape, elements: int) -> None:
        """Adds a gradient to the buffer that accumulates it, where nobody else does."""
        added = self.numbers.added
        moved = float(2 + 2 * self.numbers.wide) if added is None else added
        if moved:
            pass_over(t, elements, elements * moved)

    def _product(
        self, t: Tape, rows: Sequence[int], n: int, k: int, layout: str
    ) -> None:
        """Products of experts with so many rows each; flops and bytes are the rows' own.

        In bf16 as grouped GEMMs were measured, rows of the mean. In fp8, where none were, as one GEMM of whole tiles,
        longer by what bf16 ones are where they are not single kernels.
        """
        if not self.numbers.products:
            _measured(t, rows, n, k, layout)
            return
        total, weights = sum(rows), float(len(rows) * n * k)
        if layout == "tn":
            shape = self._weights_shape(rows, n, k)
            moved = total * (n + k) + 2 * self.numbers.wide * weights
        else:
            shape = (round(_tiled(rows) * self._longer(rows)), n, k)
            moved = total * k + weights + 2.0 * total * n
        one, flops = product(shape, self.numbers.products), 2.0 * total * n * k
        t.launch(replace(one, bytes=moved, flops=flops))

    def _longer(self, rows: Sequence[int]) -> float:
        """How much longer products of several experts take than one product of all rows."""
        return 1.0 if self.single or len(rows) == 1 else GROUPED

    def _weights_shape(
        self, rows: Sequence[int], n: int, k: int
    ) -> tuple[int, int, int]:
        """Weight gradients, as deep as an expert has rows, are one product with the weights' rows of all experts."""
        return round(len(rows) * n * self._longer(rows)), k, _mean(rows)


def _mean(rows: Sequence[int]) -> int:
    """Rows of an expert."""
    return max(1, round(sum(rows) / len(rows)))


def _tiled(rows: Sequence[int]) -> int:
    """Rows of whole tiles."""
    return sum(ceil(count / TILE) * TILE for count in rows)


def _measured(t: Tape, rows: Sequence[int], n: int, k: int, layout: str) -> None:
    """As grouped GEMMs were measured: every expert has the mean of the rows."""
    mean = _mean(rows)
    if len(rows) == 1:
        shape = (n, k, mean) if layout == "tn" else (mean, n, k)
        multiply_sizes(t, *shape, layout)
        return
    multiply_group_sizes(t, len(rows), len(rows) * mean, n, k, layout)
