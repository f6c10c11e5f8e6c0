"""Times by the limits of the GPU, for what nobody measured."""

from __future__ import annotations

from prestep.sim.costs.estimators import LIMITS, NO_TABLE, Basis, Estimator
from prestep.sim.costs.kinds import STREAM_PASSES
from prestep.sim.costs.roofline import estimate
from prestep.sim.graph.kernel import Kernel


class ShareOfPeak(Estimator):
    """A kind without a table of which the GPU's file says the share of the peak that it reaches."""

    name = "share of the peak"
    covers = "kinds whose share of the peak the GPU's file states"

    def answers(self, kernel: Kernel) -> bool:
        return kernel.kind in self.gpu.facts.efficiency

    def seconds(self, kernel: Kernel) -> float:
        gpu, efficiency = self.gpu, self.gpu.facts.efficiency
        shares = {**efficiency, "flops": efficiency[kernel.kind]}
        return estimate(gpu.roofline, kernel, gpu.floor, shares)

    def basis(self, kernel: Kernel) -> Basis:
        return Basis("fitted", NO_TABLE, source=LIMITS)


class Limits(Estimator):
    """Any kernel: arithmetic or memory at the shares of the peaks that kernels reach on the whole."""

    name, covers = "roofline", "every kernel"

    def answers(self, kernel: Kernel) -> bool:
        return True

    def seconds(self, kernel: Kernel) -> float:
        gpu = self.gpu
        return estimate(gpu.roofline, kernel, gpu.floor, gpu.facts.efficiency)

    def basis(self, kernel: Kernel) -> Basis:
        grade = "datasheet" if kernel.kind in STREAM_PASSES else "guess"
        return Basis(grade, NO_TABLE, source=LIMITS)
