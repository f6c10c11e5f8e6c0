"""How far constants are off: relative standard deviations by family and evidence grade (`costs/uncertainty.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import NormalDist

from sim import files

WIDTHS = Path(__file__).parent / "uncertainty.toml"
NOMINAL = 0.9


@cache
def widths() -> Mapping[str, Mapping[str, float]]:
    """Relative standard deviations by family and grade."""
    return files.toml(WIDTHS.read_text(encoding="utf-8"))["spread"]  # type: ignore[no-any-return]


def quantile(nominal: float = NOMINAL) -> float:
    """Standard deviations on either side of a normal interval."""
    return NormalDist().inv_cdf((1 + nominal) / 2)
