"""Kernels that take the time of others on the same GPU: operations of PyTorch, batches; and stated times."""

from __future__ import annotations

from prestep.sim.costs import gemm
from prestep.sim.costs.counterparts import InModels as Reading
from prestep.sim.costs.estimators import Basis, Estimator
from prestep.sim.costs.kinds import DTYPE_BYTES, work
from prestep.sim.graph.kernel import BATCHES, STATED, Kernel, product


class Stated(Estimator):
    """A kernel whose time the scenario says."""

    name, covers = "scenario", "kernels whose time the scenario states"
    final = True

    def answers(self, kernel: Kernel) -> bool:
        return kernel.kind == STATED

    def seconds(self, kernel: Kernel) -> float:
        return kernel.shape[0] * 1e-9

    def basis(self, kernel: Kernel) -> Basis:
        return Basis("measured")


class InModels(Estimator):
    """An operation of PyTorch by the kernels of models that do the same, where operations were not measured."""

    name = "kernels of models"
    covers = "operations of PyTorch on a GPU where none were measured"
    final = loaded = True

    def answers(self, kernel: Kernel) -> bool:
        return self.gpu.reading(kernel) is not None

    def seconds(self, kernel: Kernel) -> float:
        reading = self._reading(kernel)
        time = self.gpu.lent(reading.main)
        if reading.beside is None:
            return time
        return time * self._variant(kernel, reading.beside)

    def basis(self, kernel: Kernel) -> Basis:
        reading = self._reading(kernel)
        basis = self.gpu.basis(reading.main)
        # Nobody measured here by how much a variant (a mask, another library) differs.
        return basis._replace(grade="guess") if reading.beside else basis

    def _reading(self, kernel: Kernel) -> Reading:
        reading = self.gpu.reading(kernel)
        assert reading is not None
        return reading

    def _variant(self, operation: Kernel, plain: Kernel) -> float:
        """Time of an operation over a plainer one's, as measured on a GPU that this one is like; else their work's."""
        measured = self.gpu
        while measured.aten_tables is None and measured.like is not None:
            measured = measured.like
        if measured.aten_tables is not None:
            return measured.duration(operation) / measured.duration(plain)
        bound = self.gpu.roofline.bound
        return bound(operation) / bound(plain)


class Batch(Estimator):
    """A batch of products as one tall product, or without tensor cores where its rows lie badly."""

    name = "one tall product"
    covers = "batches of products on a GPU where no operations were measured"
    final = True

    def answers(self, kernel: Kernel) -> bool:
        if kernel.kind not in BATCHES or len(kernel.shape) != 4:
            return False
        return kernel.dtype in DTYPE_BYTES and self.gpu.surface(kernel) is None

    def seconds(self, kernel: Kernel) -> float:
        batch, m, n, k = kernel.shape
        shape, layout = (batch * m, n, k), kernel.layout[:2]
        share = self.gpu.facts.unaligned_batch
        if share and gemm.unaligned(shape, layout, kernel.dtype):
            time = work(kernel)[0] / (share * self.gpu.peak["fp32"])
        else:
            time = self.gpu.lent(product(shape, kernel.dtype, layout))
        return max(time, self.gpu.roofline.bound(kernel))

    def basis(self, kernel: Kernel) -> Basis:
        return Basis("guess", "one tall GEMM in place of a batch")
