"""The power limit of a GPU: matrix products in a row use more than it may draw, and after a while the clock falls.

The regulator answers late. It is modelled as a budget of energy above the limit: what draws more than the limit
spends it, everything else fills it again. While there is some, products run at the highest clock; once it is spent
they run at the clock at which they draw the limit. So the first 30 ms of a step after an optimizer or a bubble are
fast, and long dense steps are up to a sixth slower than short ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Seconds from which on a product fills the GPU and its time follows the clock; constants were fitted with it (guess).
FILLS_ABOVE = 20e-6
# Share of the peak under which a product keeps the clock: odd rows reach a seventh on H100 and H200 and run as long in
# a step as alone (seen in traces of torchtitan).
BUSY_ABOVE = 0.25


@dataclass(frozen=True)
class Power:
    """Constants of a GPU; powers relative to the limit, energies in seconds at the limit (fitted; see the GPU's toml).

    Attributes
    ----------
    budget
        Energy beyond the limit that may be drawn before the clock falls, s.
    product
        Power of a matrix product at the highest clock.
    exponent
        What is drawn beyond `idle` follows the clock to this power (voltage falls with it).
    other, idle
        Power of other kernels and of a GPU without any.
    """

    budget: float
    product: float
    exponent: float
    other: float
    idle: float

    @property
    def slowest(self) -> float:
        """Time of a product that draws the limit, relative to the highest clock's; at least 1."""
        return self.longer(self.product)

    def longer(self, drawn: float) -> float:
        """Time of arithmetic that would draw so much at the highest clock, once it draws the limit; at least 1."""
        beyond = (max(1.0, drawn) - self.idle) / (1.0 - self.idle)
        return float(beyond ** (1.0 / self.exponent))

    def under(self, limit: float, clock: float, low: float) -> Power:
        """With another limit and a lower highest clock, both relative to this one's; what is drawn stays.

        Kernels other than products draw the limit at most: those that would draw more are slowed by themselves.

        Parameters
        ----------
        low
            What is drawn goes with the clock to this power below that of a product at the limit, as voltage falls less.
        """
        dynamic = self.product - self.idle
        product = self.idle + dynamic * self._share(clock, low)
        time = self._time((limit - self.idle) / dynamic, low) * clock
        exponent, beyond = self.exponent, (product - self.idle) / (limit - self.idle)
        if time > 1.0 and beyond > 1.0:
            exponent = math.log(beyond) / math.log(time)
        return Power(
            budget=self.budget / limit,
            product=product / limit,
            exponent=exponent,
            other=min(1.0, self.other / limit),
            idle=self.idle / limit,
        )

    def _share(self, clock: float, low: float) -> float:
        """What a product draws beyond idle at a clock, over that at the highest."""
        knee = 1.0 / self.slowest
        if clock >= knee:
            return float(clock**self.exponent)
        return float(knee**self.exponent * (clock / knee) ** low)

    def _time(self, share: float, low: float) -> float:
        """Time of a product at the clock at which it draws so much beyond idle: what `_share` says, the other way."""
        knee = 1.0 / self.slowest
        if share >= knee**self.exponent:
            return float(share ** (-1.0 / self.exponent))
        return float((share / knee**self.exponent) ** (-1.0 / low) / knee)


class Meter:
    """What is left of one GPU's budget; times in s must not decrease."""

    __slots__ = ("left", "power", "until")

    def __init__(
        self, power: Power, left: float | None = None, start: float = 0.0
    ) -> None:
        """`left`: the budget at `start`, s; all of it unless said."""
        self.power = power
        self.left = power.budget if left is None else left
        self.until = start

    def _rest(self, now: float) -> float:
        """Counts the pause up to `now`; returns from when on there is something to count."""
        if now > self.until:
            self._add((now - self.until) * (1.0 - self.power.idle))
            self.until = now
        return self.until

    def _add(self, energy: float) -> None:
        # Without min and max, whose calls are a twentieth of a run.
        left, budget = self.left + energy, self.power.budget
        self.left = 0.0 if left < 0.0 else left if left < budget else budget

    def product(self, now: float, duration: float) -> float:
        """Seconds that a product takes which starts `now` and would take `duration` at the highest clock."""
        power = self.power
        return self.run(now, duration, power.product, power.slowest)

    def other(self, now: float, duration: float) -> None:
        """Another kernel of `duration` starts `now`."""
        self.run(now, duration, self.power.other, 1.0)

    def run(self, now: float, duration: float, drawn: float, slowest: float) -> float:
        """Seconds of a kernel that starts `now` and would take `duration` at the highest clock.

        There it draws so much; at the clock at which it draws the limit it takes `slowest` times as long. A moment in
        which two kernels draw less than the limit fills the budget once.
        """
        since, excess = self._rest(now), drawn - 1.0
        if excess <= 0.0:
            self.until = max(since, now + duration)
            self._add(-excess * (self.until - since))
            return duration
        fast = min(duration, self.left / excess)
        time = fast + (duration - fast) * slowest
        self._add(-excess * fast)
        self.until = max(since, now + time)
        return time
