"""The set of measured saves."""

from __future__ import annotations

from validation.sets.checkpoint import validate_set


def test_measured_saves_are_predicted() -> None:
    """Stalls are within 12 % and steps beside an asynchronous save within 10 %; calibration rows are not judged."""
    report = validate_set("checkpoint")
    assert report.passed and len(report.cases) == 4
    assert not {case.name for case in report.cases} & {
        case.name for case in report.calibration
    }
