"""Limits of errors of training steps: the tolerances.toml beside the rows of a set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prestep.sim import schema
from prestep.sim.schema import Number, Table

SHARE = Number(above=True)
#: What a tolerances.toml may say.
TOLERANCES = Table(
    {
        "noisy_spread": SHARE,
        "step": schema.all_of(("mape", "family_mape", "bias", "worst"), SHARE),
        "noisy": schema.all_of(("mape",), SHARE),
        "memory": schema.all_of(("mape", "worst"), SHARE),
    },
    needed=("noisy_spread", "step", "noisy", "memory"),
)


@dataclass(frozen=True)
class Tolerances:
    """Limits of errors as shares of the measured value; see `cases/h200/tolerances.toml`."""

    noisy_spread: float
    step_mape: float
    family_mape: float
    bias: float
    worst: float
    noisy_mape: float
    memory_mape: float
    memory_worst: float

    @classmethod
    def read(cls, path: Path) -> Tolerances:
        """The limits of a tolerances.toml; raises with every mistake in it."""
        table = schema.read(path, TOLERANCES, "a set's tolerances.toml")
        step, noisy, memory = table["step"], table["noisy"], table["memory"]
        return cls(
            table["noisy_spread"],
            step["mape"],
            step["family_mape"],
            step["bias"],
            step["worst"],
            noisy["mape"],
            memory["mape"],
            memory["worst"],
        )
