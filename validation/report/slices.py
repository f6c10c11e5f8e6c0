"""Figures of every slice of a comparison that averages hide: signed bias and rank correlation, for any kind of set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prestep.validation.report.interface import Point, Report
from prestep.validation.report.summary import errors_of, rank_correlation


def slices_of(report: Report) -> dict[str, list[Point]]:
    """Predicted points that count, by name of a slice: all, predicted, fitted, then as the report groups them."""
    good = [point for point in report.points if not point.error and not point.faint]
    found = {
        "all": good,
        "predicted": [p for p in good if not p.fitted],
        "fitted": [p for p in good if p.fitted],
    }
    for name in dict.fromkeys(point.group for point in good):
        found[name] = [point for point in good if point.group == name]
    return {name: points for name, points in found.items() if points}


def rank_of(points: Sequence[Point]) -> float | None:
    """Spearman's correlation of measured and predicted times: whether what is faster was said to be faster.

    None where it says nothing: fewer than three points, or all equal.
    """
    return rank_correlation(
        [point.measured for point in points], [point.predicted for point in points]
    )


def to_json(report: Report) -> dict[str, Any]:
    """Of every slice: n, mape, worst, worst_id, bias, rank_correlation."""
    return {
        name: {
            **errors_of(
                [(point.name, point.predicted / point.measured - 1) for point in points]
            ).to_json(),
            "rank_correlation": rank_of(points),
        }
        for name, points in slices_of(report).items()
    }
