"""Coverage: measured times are counted in the intervals that were predicted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from prestep.validation.report import coverage
from prestep.validation.report.interface import Point
from tests.conftest import ReportOf


@dataclass(frozen=True)
class Some:
    points: tuple[Point, ...]


def point(
    measured: float, fitted: bool = False, faint: bool = False, error: str = ""
) -> Point:
    return Point("a", "g", measured, 1.0, fitted, faint, error, (0.9, 1.1))


def test_inside_counts_with_its_bounds() -> None:
    """A measurement on the bound is inside, one beyond is not, one without a prediction does not count."""
    found = coverage.coverage_of(
        [point(0.9), point(1.1), point(1.0), point(1.2), point(1.0, error="none")]
    )
    assert found is not None
    assert (found.n, found.inside, found.share) == (4, 3, 0.75)
    assert found.width == pytest.approx(1.1 / 0.9 - 1)


def test_fitted_and_noisy_rows_stand_apart() -> None:
    """What constants were taken from, and what is noisy, does not make the coverage of predicted rows better."""
    report = Some((point(2.0), point(1.0, fitted=True), point(1.0, faint=True)))
    told = coverage.to_json(report)  # type: ignore[arg-type]
    assert told is not None
    assert {key: told[key]["share"] for key in ("predicted", "fitted", "noisy")} == {
        "predicted": 0.0,
        "fitted": 1.0,
        "noisy": 1.0,
    }
    assert "predicted 0 of 1 (0%), fitted 1 of 1 (100%)" in coverage.line(report)  # type: ignore[arg-type]


def test_a_set_without_intervals_has_no_line() -> None:
    """Collectives have none: nothing is said, instead of 0 %."""
    plain = Point("a", "g", 1.0, 1.0, False)
    assert coverage.line(Some((plain,))) == ""  # type: ignore[arg-type]
    assert coverage.to_json(Some((plain,))) is None  # type: ignore[arg-type]


@pytest.mark.slow
def test_intervals_cover_what_they_say(report_of: ReportOf) -> None:
    """Of the predicted rows of all sets of steps 85 to 95 % lie in their 90 % interval, with and without noisy rows.

    One set alone has 25 to 53 rows: there a right interval covers 80 to 98 % (two standard deviations).
    """
    names = ("h200", "h200-unseen", "h200-preregistered", "h200-preregistered-2")
    points = [p for name in names for p in report_of(name).points if not p.fitted]
    for rows in (points, [p for p in points if not p.faint]):
        found = coverage.coverage_of(rows)
        assert found is not None
        assert 0.85 <= found.share <= 0.95
