"""Predictions that were written down before the measurement."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lab import preregister
from prestep.sim.errors import InputError
from prestep.validation.formats.rows import read_rows
from prestep.validation.sets.sets import folder_of

FOLDER = folder_of("h200-preregistered")
H200 = FOLDER.parent / "h200"


def _plan() -> dict:
    return json.loads((FOLDER / "plan.json").read_text(encoding="utf-8"))


def test_what_was_planned_was_predicted_and_measured() -> None:
    """Every row of the plan has a number in predicted.json, and a measurement."""
    written = json.loads((FOLDER / "predicted.json").read_text(encoding="utf-8"))
    files = (
        "preregistered_4gpu.jsonl",
        "preregistered_2gpu.jsonl",
        "leafspine_preregistered.jsonl",
    )
    measured = {
        row.name for file in files for row in read_rows(H200 / file) if not row.error
    }
    planned = {
        row["id"] if row["label"] == "default" else f"{row['id']}@{row['label']}"
        for row in preregister.steps_planned(_plan())
    }
    assert planned == written["steps"].keys() == measured
    assert all(
        isinstance(value, float)
        for part in ("steps", "collectives")
        for value in written[part].values()
    )


def test_comparing_uses_what_was_written_and_nothing_else(tmp_path: Path) -> None:
    """A row is compared with the number in predicted.json, whatever the present code would say."""
    case = {"id": "a", "model": "llama1b", "mode": "single", "mbs": 1}
    (tmp_path / "predicted.json").write_text(
        '{"steps": {"a": 0.5}, "steps_other_host": {"a": 0.4}, "collectives": {}}'
    )
    row = {"id": "a", "world": 1, "case": case, "step_s_by_rank": {"0": [1.0, 1.0]}}
    (tmp_path / "rows.jsonl").write_text(
        json.dumps(row) + "\n" + json.dumps(row | {"id": "stranger"}) + "\n"
    )
    found = preregister.compare(tmp_path, [tmp_path / "rows.jsonl"])
    assert found == {
        "steps": [("a", 1.0, 0.5)],
        "steps_other_host": [("a", 1.0, 0.4)],
        "collectives": [],
    }
    assert "| a | 1000 ms | 500 ms | -50.0% |" in preregister.table(found["steps"])


def test_what_was_written_stays() -> None:
    """Predictions are not written over."""
    with pytest.raises(InputError, match="what was written stays"):
        preregister.main(["predict", str(FOLDER)])


def test_summary_of_errors() -> None:
    """Mean, median, 90th percentile and worst of sizes; the bias keeps signs."""
    said = preregister.summary([-0.1, 0.1, 0.1, 0.3])
    assert (
        said
        == "4 rows: mean 15.0%, median 10.0%, 90th percentile 30.0%, worst 30.0%, bias +10.0%"
    )
    assert preregister.summary([]) == "no rows"


def test_a_planned_collective_follows_the_variables_of_its_series() -> None:
    """The line of a series' variables comes before its sizes."""
    plan = {
        "collectives": [
            {
                "ranks": 2,
                "label": "ch3",
                "ops": ["reduce"],
                "sizes": [8],
                "env": {"NCCL_A": "1"},
            }
        ]
    }
    first, second = preregister.collectives_planned(plan)
    assert first["kind"] == "env" and first["env"]["NCCL_A"] == "1"
    assert (second["label"], second["op"], second["bytes"], second["ranks"]) == (
        "ch3",
        "reduce",
        8,
        2,
    )


def test_usage() -> None:
    """Anything else prints how it is called and ends with 2."""
    command = [sys.executable, "-m", "lab.preregister", "dance"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(preregister.__file__).parents[1],
    )
    assert done.returncode == 2
    assert "predict FOLDER" in done.stderr
