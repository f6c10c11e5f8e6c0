"""A step that was measured many times is predicted once, and judged against every measurement."""

from __future__ import annotations

import json
from pathlib import Path

from lab import CASES
from lab.sets.steps import validate_set
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.spec.sections import Scenario
from tests.validation.test_gate import always_a_second

H100 = CASES / "h100" / "train_1gpu.jsonl"


def test_a_step_is_predicted_once(tmp_path: Path) -> None:
    """A hundred repeats of a row cost one prediction; another batch is another question."""
    text = H100.read_text().splitlines()[0]
    row = json.loads(text)
    other = json.dumps(row | {"case": row["case"] | {"mbs": 5}})
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([text] * 100 + [other]))
    asked: list[Scenario] = []

    def counted(scenario: Scenario) -> Prediction:
        asked.append(scenario)
        return always_a_second(scenario)

    report = validate_set("h100", rows=path, predict=counted)
    assert len(report.cases) == 101
    assert len(asked) == 2
