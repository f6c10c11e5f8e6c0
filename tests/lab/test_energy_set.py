"""The set of steps with watts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from lab import CASES
from lab.fit import draw
from lab.sets.energy import CLOCK, ENERGY, GIVEN, POWER, validate_set
from lab.sets.programs import cluster_of
from prestep.sim.costs import load_gpu
from prestep.sim.errors import InputError
from prestep.validation.formats.rows import Row

ROW = CASES / "energy" / "train_h100_power.jsonl"


def write(path: Path, **changes: object) -> Path:
    """One row of the set with some keys changed."""
    row = json.loads(ROW.read_text().splitlines()[4])
    path.write_text(json.dumps(row | changes) + "\n")
    return path


def test_a_row_is_judged_by_its_watts_and_its_joules(tmp_path: Path) -> None:
    """A long step of products on an H100 is within 5 % in watts and 6 % in joules."""
    report = validate_set("energy", write(tmp_path / "h100.jsonl"))
    assert {case.kind for case in report.cases} == {POWER, ENERGY, GIVEN, CLOCK}
    assert report.groups[POWER].worst < 0.05
    assert report.groups[ENERGY].worst < 0.06
    assert report.groups[CLOCK].worst < 0.1


def test_rows_of_the_fit_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fit reads is calibration in set.toml and no row of the set: no file, no machine, no row is in both."""
    read: list[Path] = []
    real = draw.read_rows

    def noted(path: Path) -> list[Row]:
        read.append(path)
        return list(real(path))

    monkeypatch.setattr(draw, "read_rows", noted)
    samples = list(draw.steps(load_gpu("h200"), "h200-host-4"))
    table = tomllib.loads((CASES / "energy" / "set.toml").read_text())
    assert {path.name for path in read} == {*table["calibration"]}
    assert not {*table["calibration"]} & {*table["rows"]}
    watts = {sample.watts for sample in samples}
    judged = [json.loads(line)["watts_mean"] for line in ROW.read_text().splitlines()]
    assert len(samples) == 10 and not watts & {*judged}
    machines = {
        cluster_of(CASES / "energy" / name, table["clusters"]) for name in table["rows"]
    }
    assert "h200-host-4" not in machines


def test_time_given_tells_watts_from_time(tmp_path: Path) -> None:
    """The same kernels in three times the time draw less on the mean, which the figure of the predicted step cannot see."""
    seconds = json.loads(ROW.read_text().splitlines()[4])["window_step_s"]
    one = validate_set("energy", write(tmp_path / "h100.jsonl"))
    more = {"window_step_s": 3 * seconds}
    slow = validate_set("energy", write(tmp_path / "h100-slow.jsonl", **more))
    of = [
        {case.kind: case.predicted for case in report.cases} for report in (one, slow)
    ]
    assert of[1][GIVEN] < of[0][GIVEN] and of[1][POWER] == of[0][POWER]


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
