"""Widths of collectives alone: taken from the rows that they may be taken from, and wide enough for nine in ten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fit.widths_alone import alone_widths, fit
from prestep.sim.collectives.interval import widths
from prestep.sim.costs.spreads import quantile
from prestep.validation.report.coverage import parts
from tests.conftest import ReportOf

SAMPLES = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 2)), min_size=30, max_size=60
)


@given(SAMPLES)
def test_nine_in_ten_errors_of_either_end_are_inside(
    samples: list[tuple[float, float]],
) -> None:
    """By construction, of whatever errors there are."""
    known = fit(samples)
    for part, inside in (
        ("latency", lambda s: s > 0.8),
        ("bandwidth", lambda s: s < 0.2),
    ):
        errors = [error for share, error in samples if inside(share)]
        if errors:
            assert sum(
                error <= quantile() * known[part] * (1 + 1e-9) for error in errors
            ) >= 0.9 * len(errors)


def test_the_table_holds_what_the_rows_give() -> None:
    """Widths printed anew are those of the table, to its digits; a change of constants asks for a look at them."""
    for place, (found, rows) in alone_widths(None).items():
        assert rows > 40
        assert found == pytest.approx(dict(widths()[place]), rel=0.15, abs=0.004), place


@pytest.mark.parametrize("name", ["collectives-unseen", "collectives-preregistered"])
def test_intervals_of_rows_that_no_width_has_seen_cover_what_they_say(
    name: str,
    report_of: ReportOf,
) -> None:
    """Of the predicted rows, 85 to 95 % lie in their 90 % interval."""
    assert 0.85 <= parts(report_of(name))["predicted"].share <= 0.95
