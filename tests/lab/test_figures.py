"""Figures of README and docs are what the sets say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lab.report import figures
from lab.report.figures import (
    ACCURACY,
    BEGIN,
    END,
    PRINTED,
    README,
    SETS,
    headline,
    on_bundled_host,
    printed,
    reports_of,
    summary,
    whole,
    written,
)
from lab.sets.steps import Predict, Report, validate_set
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from tests.conftest import ReportOf, Step
from tests.sim.synthetic import result


def test_figures_replace_what_is_between_the_markers() -> None:
    """The rest of the page stays, and writing twice is writing once."""
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = written(page, "new")
    assert (
        once == f"before\n{BEGIN}\nnew\n{END}\nafter\n" and written(once, "new") == once
    )


@pytest.mark.parametrize(
    "page", ["no markers", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"]
)
def test_a_page_without_markers_is_refused(page: str) -> None:
    """Figures never go to a place that nobody chose."""
    with pytest.raises(ValueError, match="figures: begin"):
        written(page, "new")


@pytest.fixture(scope="module")
def straggler(report_of: ReportOf) -> Report:
    """A set of four rows."""
    report: Report = report_of("h200-straggler")
    return report


def test_the_summary_tells_every_failed_check(straggler: Report) -> None:
    """A miss is never left out, and what passes is not called a miss."""
    strict = replace(
        straggler, tolerances=replace(straggler.tolerances, step_mape=0.0, bias=0.0)
    )
    failed = [check.name for check in strict.checks if not check.passed]
    told = summary([strict]).partition("Checks that fail: ")[2]
    assert {"step time: mean", "step time: bias"} <= set(failed) and all(
        f"h200-straggler, {n}" in told for n in failed
    )
    good = replace(straggler, tolerances=replace(straggler.tolerances, bias=1.0))
    assert summary([good]).endswith("All checks of these sets pass.")


def test_the_summary_has_the_figures_of_the_report(straggler: Report) -> None:
    """The same numbers that `prestep validate` prints: count, mean, bias, worst and whose it is."""
    errors = straggler.select()
    line = next(
        line
        for line in summary([straggler]).splitlines()
        if line.startswith("| **h200-straggler**")
    )
    assert [cell.strip() for cell in line.split("|")[2:-1]] == [
        str(errors.n),
        f"{errors.mape:.1%}",
        f"{errors.bias:+.1%}",
        f"{errors.worst:.1%} ({errors.worst_id})",
        f"{straggler.memory.mape:.1%}",
    ]


def test_the_accuracy_page_has_every_row(straggler: Report) -> None:
    """Each case is in it, under headings that fit into the page."""
    text = whole([straggler])
    assert all(f"| {case.row.name} " in text for case in straggler.cases)
    assert text.startswith("## h200-straggler") and "\n# " not in text


def test_rows_that_say_how_fast_their_host_was_are_shown_without_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A factor that came with the measurement is not allowed to flatter the table in silence."""
    asked = []

    def stand_in(name: str, jobs: int = 1, predict: object = None) -> Report:
        asked.append((name, predict))
        return _slow_host(validate_set("h200-straggler", predict=_constant))

    monkeypatch.setattr(figures, "validate_set", stand_in)
    reports, untold = reports_of(["h200-straggler"])
    assert asked == [("h200-straggler", None), ("h200-straggler", on_bundled_host)]
    assert "with the bundled `host_factor`" in summary(reports, untold)


def _constant(scenario: Scenario) -> Prediction:
    return result()


def _slow_host(report: Report) -> Report:
    first, *others = report.cases
    return replace(
        report,
        cases=(
            replace(first, row=replace(first.row, cluster={"host_factor": 2.0})),
            *others,
        ),
    )


def test_without_its_own_factor_a_row_runs_on_the_bundled_host() -> None:
    """A slower host is forgotten; nothing else of the scenario changes."""
    tables = {
        "cluster": {"name": "h200-host-4", "gpus": 1},
        "model": {"name": "mlp-1024"},
    }
    plain = parse_scenario(tables, "test")
    slow = replace(plain, cluster=replace(plain.cluster, host_factor=9.0))
    assert (
        on_bundled_host(slow).step_time
        == predict(plain).step_time
        < predict(slow).step_time
    )


def test_the_headline_has_only_rows_that_no_constant_was_taken_from() -> None:
    """A line a set, with the figures of its blind rows; what fails is told under them as in the long table."""
    report = replace(validate_set("h200-straggler", predict=_constant), name="h200")
    first, *others = report.cases
    fitted = replace(report, cases=(replace(first, fitted=True), *others))
    blind = fitted.select(fitted=False)
    line = headline([fitted]).splitlines()[2]
    assert blind.n == report.select().n - 1
    assert line.split("|")[2:4] == [f" {blind.n} ", f" {blind.mape:.1%} "]
    assert headline([fitted]).splitlines()[-1] == summary([fitted]).splitlines()[-1]


@pytest.mark.slow
def test_the_pages_have_the_figures_of_this_tree(
    report_of: ReportOf, step_once: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m lab.report.figures` was run after the last change of a prediction."""

    def predicted_once(
        name: str, jobs: int = 1, predict: Predict | None = None
    ) -> Report:
        report: Report = (
            report_of(name)
            if predict is None
            else validate_set(name, jobs=jobs, predict=predict)
        )
        return report

    monkeypatch.setattr(figures, "validate_set", predicted_once)
    monkeypatch.setattr(figures, "predict", step_once)
    readme, accuracy = (
        README.read_text(encoding="utf-8"),
        ACCURACY.read_text(encoding="utf-8"),
    )
    assert written(readme, printed(), PRINTED) == readme
    reports, untold = reports_of(
        SETS
    )  # in this process: others would import everything again, for every set
    assert _between(readme) == _spaced(headline(reports))
    assert _between(accuracy) == _spaced(summary(reports, untold))


def _between(page: str) -> str:
    return _spaced(page.partition(BEGIN)[2].partition(END)[0])


def _spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip())
