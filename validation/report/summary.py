"""Errors of a group of cases."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

NAN = float("nan")


@dataclass(frozen=True)
class Errors:
    """Signed errors summed up, as shares of the measured value; nan when there are none.

    `mape` mean absolute error, `worst` largest absolute one and `worst_id` whose it is, `bias` mean signed error.
    """

    n: int
    mape: float = NAN
    worst: float = NAN
    bias: float = NAN
    worst_id: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def errors_of(errors: Sequence[tuple[str, float]]) -> Errors:
    """Errors of (id, signed error) pairs; one that is not a number makes all figures nan: no gate passes them."""
    if not errors:
        return Errors(0)
    values = [error for _, error in errors]
    if not all(map(math.isfinite, values)):
        return Errors(
            len(values),
            worst_id=next(name for name, error in errors if not math.isfinite(error)),
        )
    worst_id, worst = max(errors, key=lambda pair: abs(pair[1]))
    mape, bias = (
        math.fsum(map(abs, values)) / len(values),
        math.fsum(values) / len(values),
    )
    return Errors(len(values), mape, abs(worst), bias, worst_id)


def rank_correlation(
    measured: Sequence[float], predicted: Sequence[float]
) -> float | None:
    """Spearman's rank correlation, equal values sharing a rank; None below three values or when all are equal."""
    if len(measured) < 3 or not all(map(math.isfinite, (*measured, *predicted))):
        return None
    a, b = (pd.Series(list(values)).rank().tolist() for values in (measured, predicted))
    try:
        return statistics.correlation(a, b)
    except statistics.StatisticsError:  # all equal
        return None
