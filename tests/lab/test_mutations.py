"""A constant that is changed by 10 % does not go unnoticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.bench import mutations
from lab.bench.mutations import CONSTANTS
from lab.fit.constants import Constant
from lab.report import revisions
from lab.sets import questions
from prestep import cli
from prestep.sim.errors import InputError, PrestepError
from prestep.validation import command
from prestep.validation.report.against import MOVED, Comparison, Move, against
from tests.conftest import ReportOf


def report(predicted: float) -> dict[str, object]:
    return {
        "set": "s",
        "cases": [{"id": "a", "predicted": predicted, "signed_error": predicted - 1.0}],
    }


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_constant_is_where_it_is_said(name: str, tmp_path: Path) -> None:
    """A line that is found, and whose number is another afterwards: an entry that rots is an error."""
    constant = CONSTANTS[name]
    path = tmp_path / constant.file
    path.parent.mkdir(parents=True)
    before = (revisions.HOME / constant.file).read_text(encoding="utf-8")
    path.write_text(before, encoding="utf-8")
    assert mutations.change(tmp_path, constant) >= 1
    after = path.read_text(encoding="utf-8")
    assert after != before
    assert len(after.splitlines()) == len(before.splitlines())


def test_a_constant_that_moved_is_an_error(tmp_path: Path) -> None:
    """No line, no silence."""
    (tmp_path / "x.toml").write_text("a = 1\n")
    with pytest.raises(PrestepError, match="the constant has moved"):
        mutations.change(tmp_path, Constant("x.toml", "^b ="))
    for names, sets in ((["no such constant"], ["probes"]), ([], ["no such set"])):
        with pytest.raises(InputError):
            list(mutations.mutated(names, sets))


def test_only_the_number_behind_its_heading_changes(tmp_path: Path) -> None:
    """The first of the table, with its unit and its comment kept."""
    (tmp_path / "x.toml").write_text(
        '[a]\nb = "2 GB/s"  # 1\n[c]\nb = { value = "2 GB/s" }  # 3\n'
    )
    mutations.change(tmp_path, Constant("x.toml", "^b =", r"^\[c\]"), 2.0)
    assert (
        tmp_path / "x.toml"
    ).read_text() == '[a]\nb = "2 GB/s"  # 1\n[c]\nb = { value = "4.0 GB/s" }  # 3\n'


def test_the_smallest_difference_counts_as_one() -> None:
    """A prediction that moved by a rounding is not listed, but is not the same either."""
    found = against([report(1.0)], [report(1.0 + 1e-12)], "base")
    assert found.differing == 1
    assert not found.exact.passed
    assert all(check.passed for check in found.checks)
    assert "1 not identical" in found.verdict
    same = against([report(1.0)], [report(1.0)], "base")
    assert same.exact.passed
    assert same.to_json()["differing"] == 0


def test_exact_names_what_differs() -> None:
    """The check says which predictions."""
    move = Move("s", "a", "all", 1.0, 1.0, 0.0, 0.0)
    found = Comparison("base", (move, replace(move, name="b", now=1.1)))
    assert found.exact.detail == "s b"


def test_exact_needs_a_base() -> None:
    """`--exact` by itself is a mistake."""
    done = CliRunner().invoke(cli.main, ["validate", "h200-straggler", "--exact"])
    assert done.exit_code == 2
    assert "--exact: found no --compare" in done.stderr


@pytest.mark.usefixtures("known_reports")
def test_exact_refuses_what_the_gate_lets_pass(tmp_path: Path) -> None:
    """The same predictions exit 0; one that moved by a billionth exits 0 without --exact and 1 with it."""
    base, args = (
        tmp_path / "base.json",
        ["validate", "h200-straggler", "--jobs", "1", "--only-compare", "--compare"],
    )
    told = json.loads(
        CliRunner()
        .invoke(cli.main, ["validate", "h200-straggler", "--jobs", "1", "--json"])
        .stdout
    )
    base.write_text(json.dumps(told))
    assert CliRunner().invoke(cli.main, [*args, str(base), "--exact"]).exit_code == 0
    told["cases"][0]["predicted"] *= 1 + 1e-9
    base.write_text(json.dumps(told))
    assert CliRunner().invoke(cli.main, [*args, str(base)]).exit_code == 0
    assert CliRunner().invoke(cli.main, [*args, str(base), "--exact"]).exit_code == 1


#: Constants of all kinds, and the questions of `probes` that have to notice them.
ASKED = {
    "launch on the host": "hosts",
    "interference: power": "interference",
    "power of products": "gpus",
    "peak of H100": "gpus",
    "object store": "storage",
}


@pytest.mark.lab
@pytest.mark.longest
def test_a_sample_of_constants_is_caught(report_of: ReportOf) -> None:
    """Some of every kind are listed by the questions about them; 10 % more of a fitted one also fails on measured rows."""
    now = [command.as_json([report_of("probes")])]
    for name, found in mutations.mutated(tuple(ASKED), ["probes"], now, ASKED):
        assert found is not None, name
        assert not found.gone and not found.new
        assert any(abs(move.moved) > MOVED for move in found.moves), name
    measured = [command.as_json([report_of("h200")])]
    ((_, found),) = mutations.mutated(["kernel times: products"], ["h200"], measured)
    assert found is not None and not found.gone and not found.new
    assert not all(check.passed for check in found.checks)


def test_questions_are_asked_by_what_they_are_about() -> None:
    """Each group has its own answers, and all of them are the whole set's."""
    hosts = [answer.name for answer in questions.answers(["hosts"])]
    both = [answer.name for answer in questions.answers(["storage", "hosts"])]
    assert hosts == both[: len(hosts)] and len(both) > len(hosts)
    assert set(ASKED.values()) <= set(questions.ASK)
