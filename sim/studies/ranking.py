"""What sweeps and searches rank by: the time of a step, its energy or its cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from prestep.sim.analysis.cost import HOUR, KILOWATT_HOUR, Prices
from prestep.sim.errors import InputError

TIME, ENERGY, COST = RANKS = ("time", "energy", "cost")


@dataclass(frozen=True)
class Objective:
    """The least of `by` ranks first; `prices` say what a cost is."""

    by: str = TIME
    prices: Prices = field(default_factory=Prices)

    @property
    def priced(self) -> bool:
        """Whether anything has a price."""
        return (self.prices.gpu_hour or self.prices.kilowatt_hour) is not None

    @property
    def needs_watts(self) -> bool:
        """Whether it takes more than the time and the GPUs of a step."""
        return self.by == ENERGY or (
            self.by == COST and self.prices.kilowatt_hour is not None
        )

    def score(self, seconds: float, gpus: int, watts: float) -> float:
        """Of a step on so many GPUs at so many watts in all: s, J, or money."""
        if self.by == TIME:
            return seconds
        if self.by == ENERGY:
            return seconds * watts
        hours = (self.prices.gpu_hour or 0.0) * gpus * seconds / HOUR
        if self.prices.kilowatt_hour is None:
            return hours
        energy = seconds * watts * self.prices.pue / KILOWATT_HOUR
        return hours + self.prices.kilowatt_hour * energy


FASTEST = Objective()


def objective_of(by: str, prices: Prices) -> Objective:
    """The objective of a command line.

    Raises
    ------
    InputError
        If costs are to be ranked and nothing has a price.
    """
    if by == COST and prices.gpu_hour is None and prices.kilowatt_hour is None:
        expected = "--price (of a GPU for an hour) or --price-per-kwh"
        raise InputError.of("command line", "--rank-by", "cost, and no price", expected)
    return Objective(by, prices)
