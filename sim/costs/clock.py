"""The clock at which a kernel fits a power limit: what is drawn falls faster with it than what is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from prestep.sim.costs.draw import ATTENTION, Draw
from prestep.sim.costs.kinds import work
from prestep.sim.costs.power import Load
from prestep.sim.graph.kernel import Kernel

if TYPE_CHECKING:
    from prestep.sim.costs.changed import ChangedGpu
    from prestep.sim.costs.gpu import Gpu

LOWEST = (
    0.17  # datasheet: 345 of 1,980 MHz, the lowest clock that an H100 and an H200 list
)
STEPS = 30  # halvings until a clock is found


def work_kind(kernel: Kernel) -> str:
    """Which of a GPU's joules a flop of a kernel takes: attention's, or those of its number format."""
    return ATTENTION if "attention" in kernel.kind else kernel.dtype


def load_under(model: Gpu, gpu: ChangedGpu, kernel: Kernel) -> Load:
    """A kernel of a changed GPU under its limit; its time at the model's limit has what that limit costs in it.

    So the model draws its limit at most while the kernel runs, and a limit above the model's changes nothing. Where the
    model has a budget, its kernels but products draw the mean of that budget on it, whatever their own watts.
    """
    drawn, limit, own = model.draw, gpu.power_limit, model.power_limit
    assert drawn is not None and limit is not None and own is not None
    curve = _Curve(model, gpu, kernel, drawn)
    if curve.time <= 0:
        return Load(0.0)
    # What the model draws while the kernel runs, over what its own watts sum up to.
    share = min(1.0, (own - drawn.idle) / curve.beyond(1.0))
    if model.power is not None:
        share = (model.power.other * own - drawn.idle) / curve.beyond(1.0)
    allowed, asked = (limit - drawn.idle) / share, curve.beyond(gpu.clock)
    load = (drawn.idle + share * asked) / limit
    if asked <= allowed:
        return Load(load)
    clock = fitting(curve.beyond, allowed, gpu.clock)
    longer = max(1.0, curve.seconds(clock) / gpu.duration(kernel))
    # Below the lowest clock the GPU pauses.
    slowest = longer * max(1.0, curve.beyond(clock) / allowed)
    behind = math.log(gpu.clock / clock)
    return Load(
        load, slowest, math.log(slowest) / behind, math.log(asked / allowed) / behind
    )


def fitting(
    watts: Callable[[float], float], limit: float, highest: float = 1.0
) -> float:
    """The highest clock at which no more than `limit` is drawn; not below `LOWEST`. More is drawn at a higher one."""
    low, high = min(LOWEST, highest), highest
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if watts(middle) <= limit else (low, middle)
    return low


class _Curve:
    """Seconds and watts of one kernel by the clock."""

    def __init__(
        self, model: Gpu, gpu: ChangedGpu, kernel: Kernel, drawn: Draw
    ) -> None:
        self.gpu, self.kernel, self.drawn = gpu, kernel, drawn
        self.floor, self.time = model.floor, model.duration(kernel)
        self.least = model.roofline.bound(kernel)
        self.flops, self.size = work(kernel)

    def seconds(self, clock: float) -> float:
        """Time at a share of the model's clock."""
        beyond = max(0.0, self.time - self.floor)
        if self.least <= 0:
            return self.time
        ratio = self.gpu.roofline_at(clock).bound(self.kernel) / self.least
        return self.floor + ratio * beyond

    def beyond(self, clock: float) -> float:
        """Watts beyond those of a GPU without any kernel."""
        seconds, at = self.seconds(clock), self.drawn.at(min(1.0, clock))
        kind = work_kind(self.kernel)
        return at.kernel(seconds, self.flops, self.size, kind) / seconds
