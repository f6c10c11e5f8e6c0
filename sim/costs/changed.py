"""A GPU that is not as its model: a what-if on its arithmetic, its memory or its clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sim.costs.draw import Draw
from sim.costs.gpu import Gpu
from sim.costs.roofline import Roofline
from sim.graph.kernel import Kernel


@dataclass(frozen=True)
class Speed:
    """Factors on what a GPU of the model can do: arithmetic, HBM, and the SMs' clock (arithmetic and L2)."""

    flops: float = 1.0
    hbm_bandwidth: float = 1.0
    clock: float = 1.0


AS_MODEL = Speed()


class ChangedGpu(Gpu):
    """A GPU whose kernels take longer or shorter than its model's, as the limit that bounds each of them changed.

    A kernel that arithmetic bounds follows `flops` and `clock`, one that memory bounds `hbm_bandwidth`; the shortest
    time of any kernel stays.
    """

    def __init__(self, model: Gpu, speed: Speed) -> None:
        self.__dict__.update(model.__dict__)
        self._model, self._known = model, {}
        limits = model.roofline
        peak = {
            dtype: rate * speed.flops * speed.clock
            for dtype, rate in limits.peak.items()
        }
        self.roofline = Roofline(
            peak,
            limits.bandwidth * speed.hbm_bandwidth,
            limits.l2_bandwidth * speed.clock,
            limits.l2,
        )

    @property
    def draw(self) -> Draw | None:
        """The model's: what a flop and a byte take does not follow from how many there are in a second."""
        return self._model.draw

    def running(self, kernel: Kernel) -> float:
        """As the model's, at this speed."""
        return self._at_speed(kernel, self._model.running(kernel))

    def _duration(self, kernel: Kernel) -> float:
        return self._at_speed(kernel, self._model.duration(kernel))

    def _at_speed(self, kernel: Kernel, time: float) -> float:
        beyond = max(0.0, time - self.floor)
        return self.floor + self.ratio(kernel) * beyond

    def ratio(self, kernel: Kernel) -> float:
        """Least time of a kernel here over that on the unchanged model."""
        before = self._model.roofline.bound(kernel)
        return self.roofline.bound(kernel) / before if before > 0 else 1.0

    def evidence(self, kernel: Kernel) -> str:
        """As the model's, but nobody measured a kernel whose time was changed."""
        return self._model.evidence(kernel) if self.ratio(kernel) == 1.0 else "guess"


@cache
def changed(model: Gpu, speed: Speed) -> Gpu:
    """The model itself, or a GPU that differs from it by these factors."""
    return model if speed == AS_MODEL else ChangedGpu(model, speed)
