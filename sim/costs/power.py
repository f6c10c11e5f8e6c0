"""The power limit of a GPU: kernels in a row use more than it may draw, and after a while the clock of all falls.

The regulator answers late. It is modelled as a budget of energy above the limit: what draws more than the limit
spends it, everything else fills it again. While there is some, kernels run at the highest clock that they reach by
themselves. What is drawn beyond it lowers the clock in proportion, for all kernels alike, until the GPU draws the
limit in the mean: attention among products runs at the clock that products leave, and leaves them some of its own.
So the first 30 ms of a step after an optimizer or a bubble are fast, and long dense steps are up to a fifth slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Seconds from which on a product fills the GPU and its time follows the clock; constants were fitted with it (guess).
FILLS_ABOVE = 20e-6
# Share of the peak under which a product keeps the clock: odd rows reach a seventh on H100 and H200 and run as long in
# a step as alone (seen in traces of torchtitan).
BUSY_ABOVE = 0.25
# Time of attention goes with the clock to this power (measured on an H200 at 1,330 to 1,680 MHz: cuDNN's forward 0.82,
# backward 0.88, FlashAttention 2's 1.0).
ATTENTION_FOLLOWS = 0.88
# A longer kernel is counted in parts, as the clock falls while it runs, s.
PART = 4e-3
# Share of the budget that a part changes at most once the clock has settled, after which the rest is counted at once: a
# choice of accuracy, which moves the time of a long kernel by 2e-5.
SETTLED = 1e-5


@dataclass(frozen=True)
class Load:
    """A kernel under a power limit; what it draws, and how its time and its power go with the clock.

    Attributes
    ----------
    drawn
        Power over the limit in a burst.
    slowest
        Time at the clock at which the kernel by itself draws the limit, over that in a burst; at least 1.
    follows, falls
        Time goes with the clock's reciprocal to the power `follows`, power beyond idle with the clock to `falls`.
    own
        The GPU's highest clock over the kernel's in a burst.
    """

    drawn: float
    slowest: float = 1.0
    follows: float = 0.0
    falls: float = 0.0
    own: float = 1.0


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
    depth
        Energy beyond the limit and the budget for which the clock falls to a half, s; 0: each kernel runs at the clock
        at which it draws the limit.
    in_16_bits, in_8_bits
        The GPU's highest clock over that of products in a burst, which a faster limit holds down.
    """

    budget: float
    product: float
    exponent: float
    other: float
    idle: float
    depth: float = 0.0
    in_16_bits: float = 1.0
    in_8_bits: float = 1.0

    @property
    def spent(self) -> float:
        """What is left of the budget in the middle of a long run of products."""
        return -self.depth * (self.slowest * self.in_16_bits - 1.0)

    def own(self, dtype: str) -> float:
        """The GPU's highest clock over that of products in a number format in a burst; 0 for formats that draw less."""
        if dtype in ("bf16", "fp16"):
            return self.in_16_bits
        return self.in_8_bits if dtype in ("fp8", "fp8_block") else 0.0

    @property
    def slowest(self) -> float:
        """Time of a product that draws the limit, relative to the highest clock's; at least 1."""
        return self.longer(self.product)

    def longer(self, drawn: float) -> float:
        """Time of arithmetic that would draw so much at the highest clock, once it draws the limit; at least 1."""
        beyond = (max(1.0, drawn) - self.idle) / (1.0 - self.idle)
        return float(beyond ** (1.0 / self.exponent))

    def load(self, drawn: float, follows: float = 1.0, own: float = 1.0) -> Load:
        """Of arithmetic that draws so much in a burst."""
        return Load(drawn, self.longer(drawn) ** follows, follows, self.exponent, own)

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
            depth=self.depth / limit,
            in_16_bits=self.in_16_bits,
            in_8_bits=self.in_8_bits,
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
        # Without min, whose calls are a twentieth of a run.
        left, budget = self.left + energy, self.power.budget
        self.left = left if left < budget else budget

    def run(self, now: float, duration: float, load: Load) -> float:
        """Seconds of a kernel that starts `now` and would take `duration` in a burst.

        A moment in which two kernels run beside each other counts once.
        """
        since = self._rest(now)
        if duration <= PART or load.follows == 0.0:
            time = self._part(duration, load, since - now)
        else:
            time = self._parts(duration, load, since - now)
        until = now + time
        self.until = until if until > since else since
        return time

    def _parts(self, duration: float, load: Load, counted: float) -> float:
        """The same while the clock changes, by the kernel's own time: after years the steps of moments are coarse."""
        parts = 2 ** math.ceil(math.log2(duration / PART))
        total = 0.0
        for left in range(parts - 1, -1, -1):
            before = self.left
            time = self._part(duration / parts, load, max(0.0, counted - total))
            total += time
            if abs(self.left - before) <= SETTLED * self.power.budget:
                return total + time * left
        return total

    def _part(self, duration: float, load: Load, counted: float) -> float:
        """The same of what is over before the clock has changed much; its first `counted` s count already."""
        power, time, drawn = self.power, duration, load.drawn
        if self.left <= 0.0 and load.follows > 0.0:
            if power.depth > 0.0:
                behind = (1.0 - self.left / power.depth) / load.own
                if behind > 1.0:
                    time *= behind**load.follows
                    beyond = (drawn - power.idle) * behind**-load.falls
                    drawn = power.idle + beyond
            elif drawn > 1.0:
                time, drawn = time * load.slowest, 1.0
        if time > counted:
            self._add((1.0 - drawn) * (time - counted))
        return time
