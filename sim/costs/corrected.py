"""A GPU that prestep knows, corrected by what one machine measured of it.

A kernel takes its time on the known GPU, times the factor of its table, times a correction that goes through the
machine's own rows: near a measured shape the measurement counts, far from any the known GPU does. So a few rows of a
kind replace no table of many, and it does not matter whether that table is the GPU's own or lent by another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from prestep.sim.costs import positions, terms
from prestep.sim.costs.estimators import OWN, Basis, Estimator
from prestep.sim.costs.estimators.attention import FORMATS, plain
from prestep.sim.costs.estimators.chain import STAND_INS
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.kinds import STREAM_PASSES, work
from prestep.sim.costs.tables import Kriged, Row
from prestep.sim.graph.kernel import GEMM, PREFIX, STATED, Kernel

# Octaves over which corrections stay alike: of products, whose sizes choose another kernel of the library, and others.
LENGTH = {GEMM: 1.0}
DEFAULT_LENGTH = 3.0
# Standard deviation of the logarithm of a shape's time over factor and known GPU, its own tables or lent ones. Chosen
# with the held-out rows of three measurements in view (1, 4 H200, 1 H100), whose error hardly depends on it.
SPREAD, SPREAD_LENT = 0.05, 0.10
# The same of all kernels of a machine together: between GPUs of a model (measured); where times are lent (guess).
BETWEEN, BETWEEN_LENT = 0.0075, 0.05


def correction(rows: list[Row], below: Gpu, factor: float) -> Kriged:
    """Time here over that of the known GPU, between rows of one table."""
    length = LENGTH.get(terms.group(rows[0].kernel)[0], DEFAULT_LENGTH)
    spread = SPREAD if below.like is None else SPREAD_LENT
    return Kriged(rows, below.duration, position, length, spread, math.log(factor))


def position(kernel: Kernel) -> tuple[float, ...]:
    """Where a kernel lies among others of its table, in octaves."""
    kind = terms.group(kernel)[0]
    if kind == GEMM:
        return terms.GEMM_AXES(kernel)
    if kind.startswith(PREFIX):
        return positions.axes(kernel)
    if kind in terms.LINEAR and kind not in STREAM_PASSES:
        return terms.LINEAR[kind][1](kernel)
    return (math.log2(max(1.0, work(kernel)[1])),)


def name_of(kernel: Kernel) -> str:
    """The table of a kernel, as a key of `[factor]`: kind-layout-dtype."""
    return "-".join(filter(None, terms.group(kernel)))


class MachineRows(Estimator):
    """A kernel by the known GPU, corrected by the machine's own rows and factors."""

    name, covers = "machine's own rows", "every kernel on a GPU that a machine measured"
    gpu: CorrectedGpu

    def answers(self, kernel: Kernel) -> bool:
        return True

    def seconds(self, kernel: Kernel) -> float:
        return self.gpu.factor(kernel) * self.gpu.below.duration(kernel)

    def basis(self, kernel: Kernel) -> Basis:
        return self.gpu.below.unloaded_basis(kernel)


class CorrectedGpu(Gpu):
    """A GPU as one machine measured it."""

    def __init__(
        self, known: Gpu, rows: Iterable[Row], factors: Mapping[str, float]
    ) -> None:
        self.__dict__.update(known.__dict__)
        self.below, self._factors = known, dict(factors)
        by_table: dict[str, list[Row]] = {}
        for row in rows:
            by_table.setdefault(name_of(row.kernel), []).append(row)
        self._corrections = {
            name: correction(mine, known, self._factors.get(name, 1.0))
            for name, mine in by_table.items()
        }
        self.ask(*(estimator(self) for estimator in (*STAND_INS, MachineRows)))

    def factor(self, kernel: Kernel) -> float:
        """Time of a kernel here over that on the known GPU."""
        kernel = self._in_tables(kernel)
        name = name_of(kernel)
        if near := self._corrections.get(name):
            return near.correction(np.array(position(kernel)))
        return self._factors.get(name, 1.0)

    def _in_tables(self, kernel: Kernel) -> Kernel:
        """The kernel whose rows correct another: itself, or the one that machines measure of an operation."""
        name, readable = name_of(kernel), kernel.dtype in FORMATS
        own = name in self._corrections or name in self._factors
        beside = kernel.is_attention and readable and not own
        return plain(kernel) if beside else kernel

    def unloaded_basis(self, kernel: Kernel) -> Basis:
        """As the known GPU's, but where the machine's own rows reach the kernel."""
        basis = super().unloaded_basis(kernel)
        kernel = self._in_tables(kernel)
        near = self._corrections.get(name_of(kernel))
        if kernel.kind == STATED or near is None or not near.reaches(kernel):
            return basis
        grade = "measured" if near.measured(kernel) else "fitted"
        library = basis.source.startswith("library")
        return Basis(grade, source=basis.source if library else OWN)


def between(known: Gpu) -> float:
    """Standard deviation of the logarithm of a machine's kernels, all together, over those of the GPU model."""
    return BETWEEN if known.like is None else BETWEEN_LENT
