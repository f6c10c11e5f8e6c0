"""Steps of transformers' Qwen3-Next that were measured on one H100, beside their predictions: nothing was fitted."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from prestep.sim import api

FOLDER = Path(__file__).parents[2] / "lab" / "cases" / "qwen3-next"
ROWS = [json.loads(line) for line in (FOLDER / "h100.jsonl").read_text().splitlines()]
SCENARIO = """
[cluster]
name = "dgx-h100"
gpus = 1
[model]
file = "config.json"
[training]
micro_batch = {batch}
seq_len = {seq}
recompute = "{recompute}"
framework = "pytorch-eager"
[parallel]
dp = 1
[pytorch]
modules = "transformers"
"""


def predicted(row: dict[str, Any], folder: Path) -> api.Prediction:
    """A row's step, from the config.json of its model as transformers writes it."""
    (folder / "config.json").write_text(json.dumps(row["config"]))
    scenario = folder / "step.toml"
    scenario.write_text(SCENARIO.format(**row))
    return api.simulate(scenario)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_step_is_within_five_per_cent(row: dict[str, Any], tmp_path: Path) -> None:
    made = predicted(row, tmp_path)
    assert made.step_time == pytest.approx(statistics.median(row["times"]), rel=0.05)
    total = made.peak_memory[0].total
    assert total == pytest.approx(row["memory"], rel=0.08)
