"""Steps with float8 linears that were measured on one H100, beside their predictions."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from prestep.sim import api

FOLDER = Path(__file__).parents[2] / "lab" / "cases" / "float8"
SCALING = {"tensorwise": "dynamic", "rowwise": "rowwise"}
ROWS = [json.loads(line) for line in (FOLDER / "h100.jsonl").read_text().splitlines()]


def predicted(row: dict[str, Any]) -> float:
    """Seconds of a row's step."""
    changes = {
        "model.layers": row["layers"],
        "training.micro_batch": row["batch"],
        "training.seq_len": row["seq"],
    }
    if row["recipe"] in SCALING:
        changes["training.precision"] = "fp8"
        changes["pytorch.fp8_scaling"] = SCALING[row["recipe"]]
    return api.simulate(FOLDER / "scenario.toml", changes).step_time


def error(row: dict[str, Any]) -> float:
    return predicted(row) / statistics.median(row["times"]) - 1


@pytest.mark.parametrize("recipe, limit", [("bf16", 0.05), ("tensorwise", 0.12)])
def test_steps_that_nothing_was_fitted_to(recipe: str, limit: float) -> None:
    """Every step in 16 bits and with a scale for each tensor is within what its page says."""
    errors = [abs(error(row)) for row in ROWS if row["recipe"] == recipe]
    assert len(errors) == 3
    assert max(errors) < limit


def test_casts_by_rows_hold_for_another_batch() -> None:
    """What was fitted to one step with a scale for each row predicts the other within 5 %."""
    rows = [row for row in ROWS if row["recipe"] == "rowwise" and not row["traced"]]
    assert [abs(error(row)) < 0.05 for row in rows] == [True]
