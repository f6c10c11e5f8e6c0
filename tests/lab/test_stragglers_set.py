"""The set of recorded jobs with their authors' answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab import CASES
from lab.sets.stragglers import validate_set
from prestep import cli

FOLDER = CASES / "stragglers"


def test_the_answers_are_the_authors() -> None:
    """Every step is replayed to rounding; ideal steps and all slowdowns are the authors' to 1e-6."""
    report = validate_set("stragglers")
    assert report.passed and len(report.cases) == 214
    worst = max(abs(case.signed) for case in report.cases)
    assert worst < 1e-6
    assert {case.kind for case in report.cases} == set(report.kinds)


def test_another_job(tmp_path: Path) -> None:
    """`--rows` takes a trace with its answers beside; a wrong answer fails, and a job without answers is refused."""
    trace = tmp_path / "trace-X.parquet"
    shutil.copy(FOLDER / "trace-ST.parquet", trace)
    answers = json.loads((FOLDER / "result-ST.json").read_text())
    beside = tmp_path / "result-X.json"

    def exit_code() -> int:
        arguments = ["validate", "stragglers", "--rows", str(trace)]
        return CliRunner().invoke(cli.main, arguments).exit_code

    beside.write_text(json.dumps(answers))
    assert exit_code() == 0
    beside.write_text(json.dumps(answers | {"blocking_slowdown": 1.5}))
    assert exit_code() == 1
    beside.write_text(json.dumps({"blocking_slowdown": 1.5}))
    assert exit_code() == 2
    beside.unlink()
    assert exit_code() == 2


@pytest.mark.parametrize("name", ["SE", "ST"])
def test_a_trace_has_its_answers(name: str) -> None:
    """Both files of a job are there."""
    assert (FOLDER / f"trace-{name}.parquet").is_file()
    assert (FOLDER / f"result-{name}.json").is_file()
