"""What a step costs: its GPUs by the hour, its energy by the kilowatt-hour."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from prestep.sim.analysis.prediction import Prediction

HOUR = 3600.0  # s
KILOWATT_HOUR = 3.6e6  # J


@dataclass(frozen=True)
class Prices:
    """Prices in any one currency; None: not asked for.

    Attributes
    ----------
    gpu_hour
        Of a GPU for an hour.
    kilowatt_hour
        Of energy.
    pue
        Energy of the data centre over that of its machines (power usage effectiveness), at least 1.
    """

    gpu_hour: float | None = None
    kilowatt_hour: float | None = None
    pue: float = 1.0


@dataclass(frozen=True)
class Cost:
    """What a step costs, in the currency of its prices.

    Attributes
    ----------
    gpus, energy
        Their price for a step; None where there is none.
    step
        Of a step, all together.
    million_tokens
        Of a million tokens (samples, where the model has no tokens); nan where nobody knows how many a step has.
    kilowatt_hours
        Energy of a thousand steps, with what the data centre adds.
    """

    gpus: float | None
    energy: float | None
    step: float
    million_tokens: float
    kilowatt_hours: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def cost_of(result: Prediction, prices: Prices) -> Cost:
    """What the predicted step costs."""
    count = len(result.step_time_by_rank)
    gpus = None
    if prices.gpu_hour is not None:
        gpus = prices.gpu_hour * count * result.step_time / HOUR
    kilowatt_hours = energy = None
    if result.energy is not None:
        kilowatt_hours = result.energy.step_energy * prices.pue / KILOWATT_HOUR
        if prices.kilowatt_hour is not None:
            energy = prices.kilowatt_hour * kilowatt_hours
    step = (gpus or 0.0) + (energy or 0.0)
    tokens = result.tokens_per_second_per_gpu * count * result.step_time
    million = step / tokens * 1e6 if tokens else 0.0
    thousand = None if kilowatt_hours is None else 1000 * kilowatt_hours
    return Cost(gpus, energy, step, million, thousand)
