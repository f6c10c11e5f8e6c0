"""A GPU that is not as its model: a what-if on its arithmetic, its memory, its clock or its power limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from prestep.sim.costs.clock import load_under
from prestep.sim.costs.draw import Draw
from prestep.sim.costs.estimators import Basis, Estimator
from prestep.sim.costs.estimators.chain import STAND_INS
from prestep.sim.costs.estimators.roofline import Roofline
from prestep.sim.costs.gpu import Gpu
from prestep.sim.costs.power import Load, Power
from prestep.sim.graph.kernel import Kernel


@dataclass(frozen=True)
class Speed:
    """Factors on what a GPU of the model can do.

    Attributes
    ----------
    flops, hbm_bandwidth
        Arithmetic, and the HBM.
    clock
        The SMs' highest clock: arithmetic and L2. A power limit may ask for a lower one.
    power_limit
        Watts that it may draw.
    """

    flops: float = 1.0
    hbm_bandwidth: float = 1.0
    clock: float = 1.0
    power_limit: float = 1.0


AS_MODEL = Speed()


class ModelTimes(Estimator):
    """A kernel as on the model, as much longer or shorter as the limit that bounds it changed."""

    name, covers = "the model's times", "every kernel on a GPU that was changed"
    gpu: ChangedGpu

    def answers(self, kernel: Kernel) -> bool:
        return True

    def seconds(self, kernel: Kernel) -> float:
        return self.gpu.at_speed(kernel, self.gpu.model.duration(kernel))


class ChangedGpu(Gpu):
    """A GPU whose kernels take longer or shorter than its model's, as the limit that bounds each of them changed.

    A kernel that arithmetic bounds follows `flops` and `clock`, one that memory bounds `hbm_bandwidth`; the shortest
    time of any kernel stays. What the power limit costs depends on what ran before: `load` says what the meter needs.
    """

    def __init__(self, model: Gpu, speed: Speed) -> None:
        self.__dict__.update(model.__dict__)
        self.model, self._speed = model, speed
        self.roofline = roofline_at(model.roofline, speed, speed.clock)
        self.power = _power(model, speed)
        self.ask(*(estimator(self) for estimator in (*STAND_INS, ModelTimes)))

    @property
    def draw(self) -> Draw | None:
        """The model's, at this clock: what a flop and a byte take does not follow from how many a second has."""
        drawn = self.model.draw
        # A clock beyond the highest is a guess on a GPU to come: its flops are not said to take more.
        return None if drawn is None else drawn.at(min(1.0, self._speed.clock))

    @property
    def power_limit(self) -> float | None:
        limit = self.model.power_limit
        return None if limit is None else limit * self._speed.power_limit

    @property
    def regulated(self) -> bool:
        """Whether its clock falls in other places than the model's."""
        speed = self._speed
        return speed.power_limit != 1.0 or (self.power is not None and speed.clock < 1)

    def load(self, kernel: Kernel) -> Load:
        """What a kernel draws here over the limit, and how long it takes once it draws the limit alone.

        Where the model has a budget, its products and attention draw what `Power` says, and its other kernels start
        from their mean: a change of nothing changes nothing.
        """
        if drawn := self.model.beyond_limit(kernel):
            at_pace = replace(self._speed, clock=self._pace(kernel))
            power, its = _power(self.model, at_pace, drawn), self.model.load(kernel)
            assert power is not None
            # The clock that a product reaches in a burst stays, unless the highest is lower now.
            own = max(1.0, its.own * self._speed.clock)
            return power.load(power.product, its.follows, own)
        return load_under(self.model, self, kernel)

    def _pace(self, kernel: Kernel) -> float:
        """How fast a kernel runs at this clock, over how fast at the highest; what it draws follows that.

        A product that memory bounds in part slows less than the clock. If it drew as little as the clock says, it
        would fit the limit where it runs faster than at the clock to which the limit would have slowed it.
        """
        if self._speed.clock >= 1.0:
            return 1.0
        highest = changed(self.model, replace(self._speed, clock=1.0))
        return min(1.0, highest.duration(kernel) / self.duration(kernel))

    def roofline_at(self, clock: float) -> Roofline:
        """What bounds kernels at a share of the model's clock."""
        return roofline_at(self.model.roofline, self._speed, clock)

    @property
    def clock(self) -> float:
        """The SMs' highest clock over the model's."""
        return self._speed.clock

    def sustained(self, kernel: Kernel) -> float:
        """What long load takes of a kernel's arithmetic, as on the model; less where memory is slower than that now.

        Else a slower memory would make a product faster: it would no longer be arithmetic that bounds it.
        """
        load, time = self.model.sustained(kernel), self.duration(kernel)
        before = self.model.roofline.bound(kernel)
        if time <= 0 or before <= 0:
            return load
        computes = replace(self.roofline, bandwidth=math.inf, l2_bandwidth=math.inf)
        beyond = max(0.0, self.model.duration(kernel) - self.floor)
        arithmetic = self.floor + computes.bound(kernel) / before * beyond
        return max(min(load, 1.0), load * min(1.0, arithmetic / time))

    def at_speed(self, kernel: Kernel, time: float) -> float:
        """Seconds here of a kernel that takes some `time` on the model."""
        beyond = max(0.0, time - self.floor)
        return self.floor + self.ratio(kernel) * beyond

    def ratio(self, kernel: Kernel) -> float:
        """Least time of a kernel here over that on the unchanged model."""
        before = self.model.roofline.bound(kernel)
        return self.roofline.bound(kernel) / before if before > 0 else 1.0

    def basis(self, kernel: Kernel) -> Basis:
        """As the model's, but nobody measured a kernel whose time was changed."""
        basis = self.model.basis(kernel)
        return basis if self.ratio(kernel) == 1.0 else basis._replace(grade="guess")


def roofline_at(limits: Roofline, speed: Speed, clock: float) -> Roofline:
    """The limits of a GPU changed so, at a share of its model's clock."""
    peak = {dtype: rate * speed.flops * clock for dtype, rate in limits.peak.items()}
    return Roofline(
        peak,
        limits.bandwidth * speed.hbm_bandwidth,
        limits.l2_bandwidth * clock,
        limits.l2,
    )


def _power(model: Gpu, speed: Speed, drawn: float = 0.0) -> Power | None:
    """The model's power limit after a change, of kernels that draw so much over it; 0: of products."""
    if (power := model.power) is None:
        return None
    low = power.exponent if model.draw is None else model.draw.exponent
    power = replace(power, product=drawn or power.product)
    return power.under(speed.power_limit, min(1.0, speed.clock), low)


@cache
def changed(model: Gpu, speed: Speed) -> Gpu:
    """The model itself, or a GPU that differs from it by these factors."""
    return model if speed == AS_MODEL else ChangedGpu(model, speed)
