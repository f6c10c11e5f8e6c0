"""What `prestep validate --compare` says: every prediction that moved, every error that grew, per slice."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prestep import cli
from prestep.validation.report.against import CASE_SLACK, MOVED, SLICE_SLACK, against
from prestep.validation.report.summary import rank_correlation

SET = "h200-straggler"


def report(*cases: tuple[str, float, float], name: str = "s") -> dict[str, Any]:
    """A report of (id, measured, predicted)."""
    made = [
        {
            "id": id_,
            "slice": id_[0],
            "measured": m,
            "predicted": p,
            "signed_error": p / m - 1,
            "error": "",
        }
        for id_, m, p in cases
    ]
    return {"set": name, "cases": made}


def failed(base: Any, now: Any) -> list[str]:
    return [
        check.name
        for check in against([base], [now], "base").checks
        if not check.passed
    ]


def test_equal_reports_have_nothing_to_tell() -> None:
    """A report against itself: no move, nothing worse, all checks pass."""
    one = report(("a1", 1.0, 1.1), ("b1", 2.0, 1.9))
    made = against([one], [one], "base")
    assert (
        not made.moves
        and all(check.passed for check in made.checks)
        and not list(made.tables())
    )


def test_errors_that_cancel_in_the_mean_are_seen() -> None:
    """One case gets better by as much as another gets worse: the mean stays, both are listed, and the worse one fails."""
    base, now = (
        report(("a1", 1.0, 1.05), ("a2", 1.0, 1.10)),
        report(("a1", 1.0, 1.10), ("a2", 1.0, 1.05)),
    )
    made = against([base], [now], "base")
    assert {move.name for move in made.moves} == {"a1", "a2"}
    assert failed(base, now) == ["compared: s, a1: error grew"]


def test_a_slice_fails_by_itself() -> None:
    """A slice whose mean error grew past its slack fails though no single case did and another slice got better."""
    by = (SLICE_SLACK + CASE_SLACK) / 2
    base = report(("a1", 1.0, 1.05), ("b1", 1.0, 1.05))
    now = report(("a1", 1.0, 1.05 + by), ("b1", 1.0, 1.05 - by))
    assert failed(base, now) == ["compared: s, a: mean error grew"]


def test_a_case_that_is_gone_or_not_predicted_fails() -> None:
    """Neither dropping a case nor failing on it makes a version better; a new case is told and does not fail."""
    base = report(("a1", 1.0, 1.0), ("a2", 1.0, 1.0))
    lost, broken = report(("a1", 1.0, 1.0)), copy.deepcopy(base)
    broken["cases"][1] |= {"predicted": None, "signed_error": None, "error": "no"}
    assert failed(base, lost) == ["compared: cases gone"]
    assert failed(base, broken) == ["compared: no longer predicted"]
    assert failed(lost, base) == []


def test_cases_of_one_name_are_told_apart() -> None:
    """A set may hold a configuration twice: the second is compared with the second."""
    base = report(("a1", 1.0, 1.0), ("a1", 1.0, 1.2))
    assert not against([base], [base], "base").moves


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_what_moved_is_listed(measured: float, before: float, now: float) -> None:
    """A prediction is listed exactly if it moved by more than the bound or its error grew."""
    made = against(
        [report(("a", measured, before))], [report(("a", measured, now))], "base"
    )
    worse = abs(now / measured - 1) - abs(before / measured - 1) > 1e-6
    assert bool(made.moves) == (abs(now / before - 1) > MOVED or worse)


@pytest.mark.parametrize(
    ("predicted", "rank"),
    [([1, 2, 3], 1.0), ([3, 2, 1], -1.0), ([5, 5, 5], None), ([1, 3, 2], 0.5)],
)
def test_rank_correlation(predicted: list[float], rank: float | None) -> None:
    """Spearman's: 1 in order, -1 in reverse, nothing when all are equal."""
    assert rank_correlation([1, 2, 3], predicted) == (
        None if rank is None else pytest.approx(rank)
    )


@pytest.mark.usefixtures("known_reports")
def test_the_command_compares_with_its_own_json(tmp_path: Path) -> None:
    """`--json` is a base; unchanged it exits 0, with a base that was better it lists the case and exits 1."""
    runner, base = CliRunner(), tmp_path / "base.json"
    first = runner.invoke(cli.main, ["validate", SET, "--json", "--jobs", "1"])
    base.write_text(first.stdout)
    told = json.loads(first.stdout)
    assert (
        told["by_slice"]["all"]["n"] == 4
        and -1 <= told["by_slice"]["all"]["rank_correlation"] <= 1
    )
    page = tmp_path / "p.html"
    same = runner.invoke(
        cli.main,
        ["validate", SET, "--jobs", "1", "--compare", str(base), "--html", str(page)],
    )
    assert same.exit_code == 0 and "0 moved" in same.stdout and "0 worse" in same.stdout
    text = page.read_text()
    assert text.count("<svg") == 2 and "://" not in text
    worst = max(told["cases"], key=lambda case: abs(case["signed_error"]))
    worst |= {"predicted": worst["measured"], "signed_error": 0.0}
    base.write_text(json.dumps(told))
    now = runner.invoke(
        cli.main, ["validate", SET, "--jobs", "1", "--compare", str(base), "--json"]
    )
    compared = json.loads(now.stdout)["compared"]
    assert now.exit_code == 1 and [move["id"] for move in compared["moves"]] == [
        worst["id"]
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[1]",
        '{"set": "x"}',
        '{"set": "x", "cases": [{"predicted": "1"}]}',
        "[" * 99999,
        None,
    ],
)
def test_a_base_that_is_none_is_refused(tmp_path: Path, text: str | None) -> None:
    """Exit 2 and the file's name, before anything is predicted."""
    base = tmp_path / "b.json"
    if text is not None:
        base.write_text(text)
    done = CliRunner().invoke(
        cli.main, ["validate", SET, "--jobs", "1", "--compare", str(base)]
    )
    assert done.exit_code == 2 and "b.json" in done.stderr
