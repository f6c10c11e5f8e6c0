"""Errors of a group of cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        numbers = {"mape": self.mape, "worst": self.worst, "bias": self.bias}
        shown = {
            key: value if math.isfinite(value) else None
            for key, value in numbers.items()
        }
        return {"n": self.n, **shown, "worst_id": self.worst_id}


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
    a, b = _ranks(measured), _ranks(predicted)
    middle = (len(a) + 1) / 2
    spread = math.sqrt(
        math.fsum((x - middle) ** 2 for x in a)
        * math.fsum((y - middle) ** 2 for y in b)
    )
    return (
        math.fsum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
        / spread
        if spread
        else None
    )


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for index in order[at:end]:
            ranks[index] = (at + 1 + end) / 2
        at = end
    return ranks
