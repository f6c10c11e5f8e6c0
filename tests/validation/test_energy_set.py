"""The set of steps with watts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.errors import InputError
from validation.sets.energy import ENERGY, POWER, validate_set
from validation.sets.sets import CASES

ROW = CASES / "energy" / "train_h100_power.jsonl"


def write(path: Path, **changes: object) -> Path:
    """One row of the set with some keys changed."""
    row = json.loads(ROW.read_text().splitlines()[4])
    path.write_text(json.dumps(row | changes) + "\n")
    return path


def test_a_row_is_judged_by_its_watts_and_its_joules(tmp_path: Path) -> None:
    """A long step of products on an H100 is within 5 % in watts and 6 % in joules."""
    report = validate_set("energy", write(tmp_path / "h100.jsonl"))
    assert {case.kind for case in report.cases} == {POWER, ENERGY}
    assert report.groups[POWER].worst < 0.05
    assert report.groups[ENERGY].worst < 0.06


def test_rows_of_the_fit_are_not_judged() -> None:
    """Files that constants came from are in set.toml as such, and are no rows of the set."""
    table = (CASES / "energy" / "set.toml").read_text()
    assert 'rows = ["train_h100_power.jsonl"]' in table
    assert 'calibration = ["train_h200_power.jsonl"]' in table


def test_a_row_without_watts_says_so(tmp_path: Path) -> None:
    """A row with no watts fails by name, and the report does not pass."""
    report = validate_set("energy", write(tmp_path / "h100.jsonl", watts_mean=None))
    assert "watts_mean" in report.cases[0].error
    assert not report.passed


def test_rows_of_an_unknown_machine_ask_for_a_cluster(tmp_path: Path) -> None:
    """A file whose name says no machine needs --cluster."""
    with pytest.raises(InputError, match="--cluster"):
        validate_set("energy", write(tmp_path / "mine.jsonl"))
    report = validate_set("energy", write(tmp_path / "mine.jsonl"), cluster="dgx-h100")
    assert not report.cases[0].error
