"""Traces as a measured set: the bundled runs, or a folder of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.validation.sets.sets import set_names
from tests.conftest import ReportOf
from tests.workloads.traces import synthetic


@pytest.mark.slow
def test_the_bundled_traces_are_within_their_limits(report_of: ReportOf) -> None:
    """Recorded within 1 %, simulated within 3 % on average and 6 % at worst, every re-targeted run within its limit."""
    report = report_of("traces")
    assert [check.name for check in report.checks if not check.passed] == []
    assert {"recorded", "simulated", "retargeted"} <= set(report.groups)


def test_a_folder_of_other_traces_is_judged(tmp_path: Path) -> None:
    """`prestep validate traces --rows DIR` compares every run in the folder, as recorded and simulated."""
    synthetic.save(tmp_path)
    result = CliRunner().invoke(
        main, ["validate", "traces", "--rows", str(tmp_path), "--json"]
    )
    found = json.loads(result.stdout)
    assert found["groups"]["recorded"]["n"] == found["groups"]["simulated"]["n"] == 8
    assert found["groups"]["recorded"]["worst"] < 1e-6
    assert result.exit_code == 1  # the hand-made transfers are not those of an H200


def test_a_folder_without_traces_is_an_error(tmp_path: Path) -> None:
    """An empty folder ends with exit code 2 and what was expected."""
    result = CliRunner().invoke(main, ["validate", "traces", "--rows", str(tmp_path)])
    assert result.exit_code == 2
    assert "a folder with traces" in result.output


def test_the_set_is_listed() -> None:
    """Traces are a kind of set."""
    assert set_names("traces") == ["traces"]
