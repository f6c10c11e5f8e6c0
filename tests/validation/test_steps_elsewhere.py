"""Steps that were measured on another machine than the H200's: a set says which, or `--cluster` does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab import CASES
from lab.sets.step_sets import load_set
from lab.sets.steps import validate_set
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.sections import Scenario
from prestep.validation.formats.scenarios import scenario_of
from tests.validation.test_gate import always_a_second

H100 = CASES / "h100" / "train_1gpu.jsonl"


class Asked:
    """Clusters that predictions were asked for."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario] = []

    def __call__(self, scenario: Scenario) -> Prediction:
        self.scenarios.append(scenario)
        return always_a_second(scenario)

    @property
    def names(self) -> set[str]:
        return {str(one.cluster.name or one.cluster.file) for one in self.scenarios}


def test_a_set_says_where_its_rows_were_measured() -> None:
    asked = Asked()
    report = validate_set("h100", predict=asked)
    assert asked.names == {"dgx-h100"} and len(report.cases) == 11
    assert {one.cluster.host_factor for one in asked.scenarios} == {2.0}
    assert load_set("h200").cluster == {}


def test_other_rows_are_put_where_the_command_says() -> None:
    asked = Asked()
    validate_set("h200", rows=H100, cluster="dgx-h100", predict=asked)
    assert asked.names == {"dgx-h100"}
    validate_set("h200", rows=H100, cluster="dgx-b200", predict=asked)
    assert asked.names == {"dgx-h100", "dgx-b200"}


def test_a_row_that_says_where_it_ran_stays_there(tmp_path: Path) -> None:
    record = json.loads(H100.read_text().splitlines()[1]) | {"cluster": "dgx-a100"}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(record))
    asked = Asked()
    validate_set("h200", rows=rows, cluster="dgx-h100", predict=asked)
    assert asked.names == {"dgx-a100"}


def test_a_cluster_of_a_file_is_found_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text('extends = "dgx-h100"\n')
    monkeypatch.chdir(tmp_path)
    asked = Asked()
    validate_set("h200", rows=H100, cluster="mine.toml", predict=asked)
    assert asked.names == {str(tmp_path / "mine.toml")}


def test_mistakes_are_told_once() -> None:
    with pytest.raises(InputError, match="nope") as error:
        validate_set("h200", rows=H100, cluster="nope")
    assert len(error.value.mistakes) == 1
    with pytest.raises(InputError, match="--rows"):
        validate_set("h200", cluster="dgx-h100")


def test_a_machine_is_no_h200() -> None:
    """The same rows as if on an H200 are other predictions: memory, clock and host differ."""
    row = replace(load_set("h100").rows[1], cluster={})
    there = replace(row, cluster={"name": "dgx-h100"})
    assert predict(scenario_of(row)).step_time != predict(scenario_of(there)).step_time
