"""Rows that scripts configure: read by the opener that users have, with nothing left out."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from lab.formats import script_rows
from prestep.sim.errors import InputError
from prestep.sim.spec.load import load_scenario, parse_scenario

VARIABLES = {
    "DGXNNODES": "2",
    "DGXNGPU": "8",
    "TENSOR_MODEL_PARALLEL": "2",
    "MINIBS": "4",
    "MICRO_BATCH_SIZE": "2",
    "SEQ_PARALLEL": "True",
    "RECOMPUTE_MODULES": "(unset)",
}
ROW = {
    "id": "one",
    "source": "MLPerf Training v6.0 llama31_8b logs (Somebody)",
    "hardware": "B200",
    "gpus": "16",
    "nodes": "2",
    "benchmark": "llama31_8b",
    "metric_value": "2.0",
    "submitter": "Somebody",
    "quality": "A",
}


def rows_in(folder: Path, *changed: dict[str, str], **variables: str) -> Path:
    """A file of rows, each like `ROW`, beside the script of those variables."""
    path = folder / "rows.csv"
    rows = [{**ROW, "id": f"row{i}", **row} for i, row in enumerate(changed or ({},))]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ROW.keys())
        writer.writeheader()
        writer.writerows(rows)
    script = "v9.9:Somebody/llama31_8b/config_two.sh"
    entry = {"config": script, "env": {**VARIABLES, **variables}}
    text = json.dumps({row["id"]: entry for row in rows})
    (folder / "other_configs.json").write_text(text)
    return path


def test_a_row_is_what_a_user_gets_for_its_script(tmp_path: Path) -> None:
    """The same variables in a file, on the row's cluster, are the same scenario; the folder says the model."""
    row = script_rows.read(rows_in(tmp_path))[0]
    script = tmp_path / "llama31_8b" / "config.sh"
    script.parent.mkdir()
    told = (pair for pair in VARIABLES.items() if pair[1] != "(unset)")
    script.write_text("".join(f"export {k}={v}\n" for k, v in told))
    place = ("cluster.name=dgx-b200-superpod", "cluster.hosts=2")
    ours = parse_scenario(dict(script_rows.parse_row(row).tables), "row")
    theirs = load_scenario(script, place)
    for section in ("cluster", "model", "training", "parallel", "megatron"):
        assert getattr(ours, section) == getattr(theirs, section)


def test_what_a_script_refuses_skips_its_row(tmp_path: Path) -> None:
    """A key that decides what a step computes, and that nobody knows, is the reason; nothing is left out."""
    path = rows_in(tmp_path, NEW_PIPELINE_STAGES="3")
    with pytest.raises(InputError, match="NEW_PIPELINE_STAGES"):
        script_rows.parse_row(script_rows.read(path)[0])


def test_a_guessed_row_is_predicted_and_judges_nothing(tmp_path: Path) -> None:
    """Quality C stands apart; A and B are judged."""
    path = rows_in(tmp_path, {"quality": "C"}, {"quality": "B"}, {"quality": "A"})
    steps = [script_rows.parse_row(row) for row in script_rows.read(path)]
    assert [bool(step.incomplete) for step in steps] == [True, False, False]


def test_rows_without_scripts_say_so(tmp_path: Path) -> None:
    """A folder without configurations is wrong input, and so is a row that has none."""
    path = rows_in(tmp_path)
    (tmp_path / "other_configs.json").write_text("{}")
    with pytest.raises(InputError, match="no script"):
        script_rows.parse_row(script_rows.read(path)[0])
    (tmp_path / "other_configs.json").unlink()
    with pytest.raises(InputError, match=r"configs\.json beside"):
        script_rows.read(path)
