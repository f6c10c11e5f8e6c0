"""Kernels by the GPU's own measured rows: a curve or an interpolation for each kind, layout and dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from prestep.sim.costs import gemm, terms
from prestep.sim.costs.estimators import EXTRAPOLATED, Basis, Estimator
from prestep.sim.costs.estimators.roofline import estimate
from prestep.sim.costs.facts import GpuFacts
from prestep.sim.costs.kinds import OVER_PCIE, STREAM_PASSES, work
from prestep.sim.costs.tables import Curve, Kriged, Row
from prestep.sim.costs.terms import Group
from prestep.sim.graph.kernel import GEMM, Kernel

FORWARD = "forward products"  # borrowed by gradients


class KernelTables:
    """Rows of a GPU by (kind, layout, dtype), and what is interpolated from them.

    Attributes
    ----------
    floor
        Least seconds of a kernel.
    stream
        Bytes/s that a streaming kernel reaches beyond its rows.
    product
        Seconds of a product by the tile model, which rows correct.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        facts: GpuFacts,
        stream: float,
        product: Callable[[Kernel], float],
    ) -> None:
        self.floor = facts.floor
        self.stream, self.product, self._facts = stream, product, facts
        self._rows: dict[Group, list[Row]] = {}
        for row in rows:
            self._rows.setdefault(terms.group(row.kernel), []).append(row)
        self._models: dict[Group, Curve | Kriged | None] = {}

    def model(self, group: Group) -> Curve | Kriged | None:
        """The table behind a (kind, layout, dtype), None where nothing was measured; built on first use."""
        if group not in self._models:
            self._models[group] = self._build(group)
        return self._models[group]

    def past(self, kernel: Kernel) -> float:
        """Octaves from the rows of a kernel's table to it; 0 where there are none."""
        model = self.model(terms.group(kernel))
        if model is None:
            return 0.0
        if isinstance(model, Curve):
            return model.past(work(kernel)[1])
        return model.past(kernel)

    def groups(self) -> tuple[Group, ...]:
        """Every (kind, layout, dtype) of which something was measured."""
        return tuple(self._rows)

    def rows(self, group: Group) -> list[Row]:
        """Rows of a group, or of the dtype and the layout that run alike."""
        kind, layout, dtype = group
        alike = gemm.SAME.get(dtype, dtype)
        # Where it is known how much longer a format takes than one that runs alike, the rows of that one count alone.
        related = kind == GEMM and dtype in self._facts.beyond_alike
        dtypes = (alike,) if related else (dtype, alike)
        layouts = (layout, "nt") if kind == GEMM and layout else (layout,)
        return next(
            (
                rows
                for at in layouts
                for d in dtypes
                if (rows := self._pooled((kind, at, d)))
            ),
            [],
        )

    def _pooled(self, group: Group) -> list[Row]:
        """Rows of a kind, or of all kinds that it stands for."""
        kind, layout, dtype = group
        return [
            row
            for each in terms.POOLED.get(kind, (kind,))
            for row in self._rows.get((each, layout, dtype), ())
        ]

    def _build(self, group: Group) -> Curve | Kriged | None:
        rows, kind = self.rows(group), group[0]
        if not rows and kind in STREAM_PASSES and group[1]:
            rows = self.rows((kind, "", group[2]))
        if not rows:
            return None
        if kind in STREAM_PASSES:
            points = (
                (work(row.kernel)[1], row.duration, row.noise**-2) for row in rows
            )
            rate = self.stream
            if kind in OVER_PCIE:  # no faster than the link was seen to be
                rate = max(work(row.kernel)[1] / row.duration for row in rows)
            return Curve(points, self.floor, rate)
        return self._kriged(group, rows)

    def _kriged(self, group: Group, rows: list[Row]) -> Kriged | None:
        """A model of the kind, corrected through its rows; None for a kind without a model."""
        kind = group[0]
        corrections = self._facts.correction
        correction = corrections.get(kind) or corrections["default"]
        length, spread = correction.length, correction.spread
        if kind == GEMM:
            return Kriged(rows, self.product, terms.GEMM_AXES, length, spread)
        coefficients = self._facts.terms.get(terms.name(*group[:2]))
        if coefficients is None:
            return None
        term, axes = terms.LINEAR[kind]
        model = partial(terms.linear, term, coefficients)
        return Kriged(rows, model, axes, length, spread)


class OwnTable(Estimator):
    """A kernel between the measured rows of its kind, layout and number format on this GPU."""

    name, covers = "own table", "kernels of whose kind rows were measured on the GPU"

    def answers(self, kernel: Kernel) -> bool:
        return self.gpu.tables.model(terms.group(kernel)) is not None

    def seconds(self, kernel: Kernel) -> float:
        model, gpu = self._model(kernel), self.gpu
        if isinstance(model, Curve):
            return model(work(kernel)[1])
        limit = estimate(gpu.roofline, kernel, gpu.floor, gpu.facts.efficiency)
        return model.continued(kernel, limit)

    def basis(self, kernel: Kernel) -> Basis:
        if borrowed := self._borrowed(kernel):
            # The tile model under products is the same for every layout.
            grade = "fitted" if borrowed == FORWARD else "guess"
            return Basis(grade, f"the table of {borrowed}")
        model = self._model(kernel)
        if isinstance(model, Curve):
            size = work(kernel)[1]
            measured, reached = model.measured(size), model.reaches(size)
        else:
            measured, reached = model.measured(kernel), model.reaches(kernel)
        grade = "measured" if measured else "fitted"
        return (
            Basis(grade)
            if reached
            else Basis(grade, EXTRAPOLATED, self.gpu.tables.past(kernel))
        )

    def _model(self, kernel: Kernel) -> Curve | Kriged:
        model = self.gpu.tables.model(terms.group(kernel))
        assert model is not None
        return model

    def _borrowed(self, kernel: Kernel) -> str:
        """The kind whose table a kernel without one is read from, or "contiguous" for another layout's; else ""."""
        kind, layout, _ = group = terms.group(kernel)
        if kernel.kind in terms.BORROWED:
            return kind
        rows = self.gpu.tables.rows(group)
        gradient = kind == GEMM and layout not in ("", "nt")
        if gradient and all(row.kernel.layout == "nt" for row in rows):
            return FORWARD
        if kind in STREAM_PASSES and layout and not rows:
            return f"contiguous {kind}"
        return ""
