"""Whether measured steps of a GPU bear out the times that another one lends it.

A kernel whose time is another GPU's, scaled by the limits of both, is a guess as long as nobody looked. Where steps of
that GPU were measured, and no constant was fitted to them, their errors say how far such kernels can be off:
`hardware/step-errors.csv` has them by kind of model and number format (`python -m lab.fit.step_errors`).
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from prestep.sim.costs.spreads import widths

PATH = Path(__file__).parent / "hardware" / "step-errors.csv"
LEAST = 20  # steps without which errors say nothing
#: The kernels that take most of the step of a kind of model; smaller ones could be far off unnoticed.
MODELS = {
    "gemm": "transformer",
    "gemm_bias": "transformer",
    "attention_fwd": "transformer",
    "attention_bwd": "transformer",
    "grouped_gemm": "experts",
}


class Errors(NamedTuple):
    """Of measured steps of a GPU: how many, and the root mean square of predicted over measured less one."""

    steps: int
    error: float


@lru_cache(maxsize=4)
def errors_of_steps(path: Path = PATH) -> dict[tuple[str, str, str], Errors]:
    """By GPU, kind of model and number format."""
    with path.open(newline="", encoding="utf-8") as file:
        return {
            (row["gpu"], row["model"], row["precision"]): Errors(
                int(row["steps"]), float(row["error"])
            )
            for row in csv.DictReader(file)
        }


def borne_out(gpu: str) -> frozenset[tuple[str, str]]:
    """Kinds and formats of kernels on a GPU: steps that they decide are off by no more than what is fitted.

    A step has other errors too, so this asks for more than the kernel alone would.
    """
    limit = widths()["lent"]["fitted"]
    return frozenset(
        (kind, dtype)
        for (name, model, dtype), found in errors_of_steps().items()
        if name == gpu and found.steps >= LEAST and found.error <= limit
        for kind in (kind for kind, decides in MODELS.items() if decides == model)
    )
