"""Reports that a run of the tests keeps are compared with a base without being predicted again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.report import kept
from prestep.validation import command
from tests.conftest import ReportOf

SET = "h200-straggler"


@pytest.fixture
def folder(report_of: ReportOf, tmp_path: Path) -> Path:
    """A folder with the report of one set."""
    kept.keep(tmp_path / "kept", report_of(SET))
    return tmp_path / "kept"


def _base(folder: Path, factor: float) -> str:
    """A base whose first prediction is so many times what is kept."""
    told = json.loads((folder / f"{SET}.json").read_text())
    case = told["cases"][0]
    case["predicted"] *= factor
    case["signed_error"] = case["predicted"] / case["measured"] - 1
    path = folder.parent / "base.json"
    path.write_text(json.dumps(told))
    return str(path)


def test_what_is_kept_is_what_the_command_tells(
    folder: Path, report_of: ReportOf
) -> None:
    """Not a digit is lost on the way to the file and back."""
    told = command.as_json([report_of(SET)])
    assert kept.reports(folder, [SET]) == [json.loads(json.dumps(told))]


def test_nothing_is_predicted_that_was_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same predictions: exit 0. The verdict counts every case."""
    monkeypatch.delattr(command, "compare")
    assert kept.main([str(folder), SET, "--base", _base(folder, 1.0)]) == 0
    assert "4 cases against" in (out := capsys.readouterr().out)
    assert "0 not identical" in out


def test_what_moved_is_listed_and_what_got_worse_fails(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kept predictions are judged as new ones are: the base was exact, so its case is named."""
    told = json.loads((folder / f"{SET}.json").read_text())["cases"][0]
    exact = _base(folder, told["measured"] / told["predicted"])
    worse = abs(told["signed_error"]) > 0.02
    assert kept.main([str(folder), SET, "--base", exact]) == int(worse)
    assert told["id"] in capsys.readouterr().out


def test_what_was_not_kept_is_predicted(
    tmp_path: Path, known_reports: None, report_of: ReportOf
) -> None:
    """No set goes uncompared because nobody kept it."""
    assert kept.reports(tmp_path, [SET]) == [report_of(SET).to_json()]


def test_the_report_of_another_set_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, with the file and what it holds."""
    (folder / f"{SET}.json").rename(folder / "h200.json")
    base = folder.parent / "base.json"
    base.write_text((folder / "h200.json").read_text())
    assert kept.main([str(folder), "h200", "--base", str(base)]) == 2
    told = capsys.readouterr().err
    assert "h200.json" in told and SET in told


@pytest.mark.parametrize("source", ["no-such-revision", "--output=x", "gone.json"])
def test_a_revision_that_is_none_is_refused(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, before anything is predicted; what starts with a dash is no option of git."""
    assert kept.main([str(tmp_path), SET, f"--base={source}"]) == 2
    assert source in capsys.readouterr().err
