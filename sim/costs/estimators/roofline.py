"""The limits of a GPU: arithmetic at peak, memory at full bandwidth, whichever is slower; and times by them.

They bound every kernel, and what nobody measured takes what they say, at the share of them that kernels reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prestep.sim.costs.estimators import LIMITS, NO_TABLE, Basis, Estimator
from prestep.sim.costs.kinds import DTYPE_BYTES, STREAM_PASSES, work
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel

WIDEST = "fp64"


@dataclass(frozen=True)
class Roofline:
    """Datasheet limits of one GPU.

    Attributes
    ----------
    peak
        Dense floating-point operations per second by dtype.
    bandwidth
        HBM bandwidth, bytes/s.
    l2_bandwidth
        L2 cache bandwidth, bytes/s; bounds what fits the cache.
    l2
        L2 size, bytes.
    """

    peak: dict[str, float]
    bandwidth: float
    l2_bandwidth: float
    l2: float

    def bound(self, kernel: Kernel) -> float:
        """Seconds that no execution of `kernel` can undercut."""
        flops, size = work(kernel)
        # Operands that fit the cache may still be there from the kernel before.
        beyond = max(0.0, size - self.l2)
        return max(
            flops / self.peak_of(kernel.dtype),
            beyond / self.bandwidth + min(size, self.l2) / self.l2_bandwidth,
        )

    def arithmetic(self, kernel: Kernel) -> bool:
        """Whether arithmetic, not HBM, bounds the kernel."""
        flops, size = work(kernel)
        return flops / self.peak_of(kernel.dtype) > size / self.bandwidth

    def computes(self, kernel: Kernel) -> bool:
        """Whether there are units for the format of a kernel; what has no arithmetic needs none.

        Integers and the mixed types of captured operations have no peak in any file.
        """
        floats = kernel.dtype in DTYPE_BYTES and not kernel.dtype.startswith("int")
        return kernel.dtype in self.peak or not floats or work(kernel)[0] == 0

    def check_format(self, kernel: Kernel, gpu: str) -> None:
        """Refuses a format that the GPU named `gpu` has no units for: nobody would wait for it to be emulated.

        Raises
        ------
        InputError
            Naming the formats that it computes.
        """
        if self.computes(kernel):
            return
        found, known = f'"{kernel.dtype}" ({kernel.kind})', ", ".join(self.peak)
        hint = f"the {gpu} has no units for it: take another format or GPU"
        expected = f"a format that it computes: {known}"
        raise InputError.of(f"GPU {gpu}", "dtype", found, expected, hint)

    def ridge(self, dtype: str) -> float:
        """Flop a byte above which arithmetic at peak bounds a kernel, below which HBM does."""
        return self.peak_of(dtype) / self.bandwidth

    def peak_of(self, dtype: str) -> float:
        """Peak of `dtype`; of a type without one (integers, mixed types) the lowest listed.

        Nothing stands on fp64: nobody computes in 64 bits because 8 are not there.
        """
        if dtype in self.peak:
            return self.peak[dtype]
        return min(rate for one, rate in self.peak.items() if one != WIDEST)


def estimate(
    roofline: Roofline, kernel: Kernel, floor: float, efficiency: Mapping[str, float]
) -> float:
    """Roofline with efficiencies, for GPUs and kinds without measurements.

    `floor` is the shortest kernel (s); `efficiency` has "flops" and "bytes", shares of the peaks that are reached.
    """
    flops, size = work(kernel)
    arithmetic = flops / (roofline.peak_of(kernel.dtype) * efficiency["flops"])
    memory = size / (roofline.bandwidth * efficiency["bytes"])
    return floor + max(arithmetic, memory)


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
