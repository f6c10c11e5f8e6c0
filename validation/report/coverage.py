"""What averages of a comparison hide: how often measured times lie in the intervals that were predicted
(`prestep.sim.analysis.uncertainty`), and bias and rank correlation of every slice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prestep.sim.costs.spreads import NOMINAL, quantile
from prestep.validation.report.interface import Point, Report
from prestep.validation.report.summary import errors_of, rank_correlation

# Cases from which a share of `NOMINAL` is known to five points either way, 19 times in 20.
ENOUGH = 139


@dataclass(frozen=True)
class Coverage:
    """Of `n` cases with an interval, `inside` had their measurement in it; `width` is the median of high / low - 1."""

    n: int
    inside: int
    width: float

    @property
    def share(self) -> float:
        return self.inside / self.n if self.n else math.nan

    @property
    def between(self) -> tuple[float, float]:
        """Shares that such a count goes with, 19 times in 20 (Wilson's interval; needs a case)."""
        z = quantile(0.95)
        middle, slack = self.share + z * z / (2 * self.n), 1 + z * z / self.n
        half = z * math.sqrt(
            self.share * (1 - self.share) / self.n + (z / (2 * self.n)) ** 2
        )
        return max(0.0, (middle - half) / slack), min(1.0, (middle + half) / slack)

    def __str__(self) -> str:
        return f"{self.inside} of {self.n} ({self.share:.0%})"

    def to_json(self) -> dict[str, Any]:
        counts = {
            "n": self.n,
            "inside": self.inside,
            "share": self.share,
            "median_width": self.width,
        }
        return counts | dict(
            zip(("share_low", "share_high"), self.between, strict=True)
        )


def coverage_of(points: Iterable[Point]) -> Coverage | None:
    """The coverage of the points that have an interval; None if none has."""
    stated = [
        (point, point.interval)
        for point in points
        if point.interval is not None and not point.error
    ]
    if not stated:
        return None
    inside = sum(low <= point.measured <= high for point, (low, high) in stated)
    widths = sorted(high / low - 1 for _, (low, high) in stated)
    return Coverage(len(stated), inside, widths[len(widths) // 2])


def parts(report: Report) -> dict[str, Coverage]:
    """Coverage of predicted rows (what counts), of those that constants were taken from, and of noisy rows."""
    points = report.points
    chosen = {
        "predicted": [p for p in points if not p.fitted and not p.faint],
        "fitted": [p for p in points if p.fitted and not p.faint],
        "noisy": [p for p in points if p.faint],
    }
    return {
        name: coverage
        for name, of in chosen.items()
        if (coverage := coverage_of(of)) is not None
    }


def to_json(report: Report) -> dict[str, Any] | None:
    """`nominal`, and n, inside, share and median_width of each part; None for a set without intervals."""
    covered = parts(report)
    return (
        {"nominal": NOMINAL, **{name: one.to_json() for name, one in covered.items()}}
        if covered
        else None
    )


def line(report: Report) -> str:
    """One line for people; "" for a set without intervals."""
    covered = parts(report)
    if not covered:
        return ""
    counts = ", ".join(f"{name} {one}" for name, one in covered.items())
    first = next(iter(covered.values()))
    few = (
        "; the true share lies between {:.0%} and {:.0%}".format(*first.between)
        if first.n < ENOUGH
        else ""
    )
    return f"measured within the {NOMINAL:.0%} interval: {counts}{few}; median width {first.width:.1%}"


def slices_of(report: Report) -> dict[str, list[Point]]:
    """Predicted points that count, by name of a slice: all, predicted, fitted, then as the report groups them."""
    good = [point for point in report.points if not point.error and not point.faint]
    slices = {
        "all": good,
        "predicted": [p for p in good if not p.fitted],
        "fitted": [p for p in good if p.fitted],
    }
    for name in dict.fromkeys(point.group for point in good):
        slices[name] = [point for point in good if point.group == name]
    return {name: points for name, points in slices.items() if points}


def rank_of(points: Sequence[Point]) -> float | None:
    """Spearman's correlation of measured and predicted times: whether what is faster was said to be faster.

    None where it says nothing: fewer than three points, or all equal.
    """
    return rank_correlation(
        [point.measured for point in points], [point.predicted for point in points]
    )


def by_slice(report: Report) -> dict[str, Any]:
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
