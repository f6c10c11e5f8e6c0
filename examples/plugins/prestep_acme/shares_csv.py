"""Where the step goes, as CSV: it answers to names that end in .csv."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prestep.sim.analysis.prediction import Prediction

SUFFIXES = (".csv",)


def write(result: Prediction, path: str | Path) -> None:
    """One line per share of the step: its name and its seconds."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("share", "seconds"), *result.breakdown.items()])
