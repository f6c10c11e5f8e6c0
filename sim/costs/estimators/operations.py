"""Operations of PyTorch by rows of operations that were measured on the GPU.

Where a kind, layout or type has no rows, those of the likest stand in; where the kind has none at all, all streams by
their bytes do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from prestep.sim.costs import padding
from prestep.sim.costs.aten import (
    ALIKE,
    BIAS,
    FAST,
    KINDS_DIFFER,
    LIKE,
    PRODUCTS,
    STREAM,
    Base,
    is_by_vector,
    is_mixed,
)
from prestep.sim.costs.convolutions import FILTER, PICTURE
from prestep.sim.costs.estimators import EXTRAPOLATED, Basis, Estimator
from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.kinds import on_cuda_cores
from prestep.sim.costs.positions import axes, stream_axes
from prestep.sim.costs.tables import JITTER, NEAR, Kriged, Row
from prestep.sim.graph.kernel import PREFIX, SCALED, Kernel

STREAMS = tuple(
    PREFIX + name
    for name in (
        *("add", "mul", "sub", "div", "neg", "copy", "relu", "silu"),
        *("where", "maximum", "addcmul"),
    )
)
Group = tuple[str, str, str]


class AtenTables:
    """Interpolated tables of one GPU by (kind, layout, types), and which one stands in for a group without rows."""

    def __init__(
        self,
        rows: list[Row],
        product: Callable[[Kernel], float],
        roofline: Roofline,
        lent: Callable[[Kernel], float] | None = None,
    ) -> None:
        """`product`: seconds of a product by its tiles; `lent`: of attention by the rows of a GPU with the same SMs."""
        self._base, self._lent = Base(product, roofline), lent
        self._groups: dict[Group, list[Row]] = {}
        for row in rows:
            self._groups.setdefault(_group_of(row.kernel), []).append(row)
        self._streams = frozenset(map(_stream_of, self._groups))
        self._surfaces: dict[Group, Kriged] = {}
        self._candidates: dict[Group, tuple[Group, ...]] = {}

    def reads(self, kernel: Kernel) -> bool:
        """Whether rows may stand for a kernel: of products in a format with scales, only that format's.

        Scales of tensors, rows and blocks are applied at other speeds.
        """
        if not (kernel.dtype in SCALED and kernel.is_product):
            return True
        own = kernel.kind, kernel.dtype
        return any(own == (kind, dtype) for kind, _, dtype in self._groups)

    def surface(self, kernel: Kernel) -> tuple[Kriged, bool]:
        """Where a kernel is read, and whether that is its own group."""
        own = _group_of(kernel)
        for group in self._likest_first(own):
            surface = self._of(group)
            if surface.fits(kernel):
                return surface, group == own
        return self._of((STREAM, "", "")), False

    def _likest_first(self, own: Group) -> tuple[Group, ...]:
        """All groups that a kernel may be read from, the best first."""
        if own not in self._candidates:
            self._candidates[own] = *self._likest(own), *self._stream(own)
        return self._candidates[own]

    def _likest(self, own: Group) -> Iterator[Group]:
        """Groups with rows of the kind, or of one that runs alike: own types first, then likely ones.

        Another layout stands in for kinds with sizes of their own; over elements, streams of the same layout do.
        """
        kind, layout, _ = own
        names = (kind, LIKE.get(kind, kind))
        mine = [group for group in self._groups if group[0] in names]
        sizes = [self._groups[group][0].kernel.shape for group in mine]
        if any(len(shape) == 1 for shape in sizes):
            mine = [group for group in mine if group[1] == layout]
        yield from sorted(mine, key=lambda group: _unlike(group, own))

    def _stream(self, own: Group) -> Iterator[Group]:
        """Streams of the layout, of one type or of several."""
        slower = ("transposed",) if own[1] == "narrow" else ()
        for layout in (own[1], *slower, "strided"):
            for mixed in (is_mixed(own[2]), "", "mixed"):
                if (STREAM, layout, mixed) in self._streams:
                    yield STREAM, layout, mixed

    def _of(self, group: Group) -> Kriged:
        if group not in self._surfaces:
            rows = self._rows(group) or [
                row
                for stream in self._groups
                if _stream_of(stream) == group
                for row in self._groups[stream]
            ]
            position = axes
            if group[0] == STREAM:
                position = stream_axes
                rows = [replace(row, noise=_differing(row)) for row in rows]
            length, spread = _smoothness(group[0])
            base = self._base_of(group)
            self._surfaces[group] = Kriged(rows, base, position, length, spread)
        return self._surfaces[group]

    def _rows(self, group: Group) -> list[Row]:
        """Rows of a group; of operations in fp16 those in bf16 too, which are ten times as many.

        On an H200 their times are 2 % apart by the median of 327 pairs. cuDNN chooses other convolutions for each type.
        """
        kind, layout, dtype = group
        rows = self._groups.get(group, [])
        if dtype == "fp16" and "convolution" not in kind:
            return [*rows, *self._groups.get((kind, layout, ALIKE[dtype]), ())]
        return rows

    def _base_of(self, group: Group) -> Callable[[Kernel], float]:
        """What rows of a group correct: of products with a bias, which is an epilogue, the table of those without."""
        kind, *rest = group
        plain = (LIKE.get(kind, kind), *rest)
        if kind in PRODUCTS and plain != group and plain in self._groups:
            return partial(_with_bias, self._of(plain))
        return self._lent if self._lent and "attention" in kind else self._base


def _with_bias(plain: Kriged, kernel: Kernel) -> float:
    start, element = BIAS
    return plain.within(kernel) + start + element * math.prod(kernel.shape[:-1])


def _group_of(kernel: Kernel) -> Group:
    """Kind, layout and types; how a matrix lies that a vector is multiplied by counts little."""
    layout = "vector" if is_by_vector(kernel) else kernel.layout
    # Rows of one gradient alone are read with those of both, an axis apart (`positions.axes`).
    for one_gradient in (FILTER, PICTURE):
        layout = layout.removesuffix(one_gradient).rstrip("_")
    return kernel.kind, layout, kernel.dtype


def _unlike(group: Group, own: Group) -> tuple[bool, ...]:
    """How far a group is from a kind, a layout and types; the smaller the liker."""
    kind, layout, dtype = own
    other = group[2]
    return (
        _on_other_units(kind, other, dtype),
        group[1] != layout,
        group[1].removesuffix(FAST) != layout.removesuffix(FAST),
        group[1][:2] != layout[:2],
        group[0] != kind,
        other != dtype,
        other != ALIKE.get(dtype),
        is_mixed(other) != is_mixed(dtype),
    )


def _on_other_units(kind: str, dtype: str, own: str) -> bool:
    """Whether one of two types of products or attention runs on tensor cores, and the other does not."""
    arithmetic = kind in PRODUCTS or "attention" in kind
    return arithmetic and on_cuda_cores(kind, dtype) != on_cuda_cores(kind, own)


def _stream_of(group: Group) -> Group | None:
    """The stream that a group is among, by its layout; None for kinds that are no streams."""
    kind, layout, dtype = group
    return (STREAM, layout, is_mixed(dtype)) if kind in STREAMS else None


def _smoothness(kind: str) -> tuple[float, float]:
    """Length and spread of a kind's corrections."""
    if kind in PRODUCTS:
        return 1.5, 0.25
    if kind == STREAM:
        return 8.0, 0.4
    return (4.0, 0.6) if "attention" in kind else (5.0, 0.4)


def _differing(row: Row) -> float:
    """Noise of a row that stands for streams by other names, too."""
    return math.hypot(KINDS_DIFFER, JITTER / row.duration)


class MeasuredOperations(Estimator):
    """An operation of PyTorch on a GPU where operations were measured."""

    name = "table of operations"
    covers = "operations of PyTorch on a GPU where some were measured"
    final = True

    def answers(self, kernel: Kernel) -> bool:
        return self.gpu.surface(kernel) is not None

    def seconds(self, kernel: Kernel) -> float:
        # Rows have heads of many widths.
        wider = (5,) if kernel.is_attention else ()
        return padding.filled_up(self.gpu, kernel, self.gpu.by_operations, wider)

    def basis(self, kernel: Kernel) -> Basis:
        surface, own = self._read(kernel)
        # By how much sums in fewer bits are faster is fitted.
        if not own and not kernel.layout.endswith(FAST):
            return Basis("guess", "the table of operations like it")
        grade = "measured" if own and surface.measured(kernel) else "fitted"
        # Where a launch decides, a smaller kernel takes as long as the smallest row.
        moves = self.gpu.roofline.bound(kernel) > self.gpu.floor
        past = surface.past(kernel) if moves else 0.0
        return Basis(grade, EXTRAPOLATED, past) if past > NEAR else Basis(grade)

    def _read(self, kernel: Kernel) -> tuple[Kriged, bool]:
        read = self.gpu.surface(kernel)
        assert read is not None
        return read
