"""Kernels that take the time of others on the same GPU: operations of PyTorch, batches; and stated times."""

from __future__ import annotations

from prestep.sim.costs import gemm
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
