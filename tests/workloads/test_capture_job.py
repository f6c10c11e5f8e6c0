"""A job that is predicted in place of being trained: `python -m prestep.capture`, and what fails it."""

from __future__ import annotations

import ast
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prestep import capture as job


@pytest.mark.parametrize(
    ("factor", "code", "reason"),
    [(1.0, 0, ""), (0.8, 1, "25.0 % slower than ")],
)
def test_a_job_is_predicted_where_its_launcher_would_train_it(
    factor: float,
    code: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It prints its figures as trainers log, and fails where an earlier commit was faster."""
    script, saved = tmp_path / "train.py", tmp_path / "figures.json"
    script.write_text("print(1)")
    monkeypatch.setattr(job, "captured", lambda command, out, **_: out.write_bytes(b""))
    result = replace(job.api.simulate("mlp-ddp4"), tokens_per_second_per_gpu=math.nan)
    monkeypatch.setattr(job.api, "simulate", lambda *_, **__: result)
    for name, value in {"PRESTEP": "1", "RANK": "0", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    saved.write_text(json.dumps({"step_s": result.step_time * factor}))
    options = ["--baseline", str(saved), "--cluster", "h200-host-4"]
    monkeypatch.setattr(sys, "argv", ["capture", *options, str(script)])
    assert job.main() == code
    printed = capfd.readouterr()
    figures = ast.literal_eval(printed.out)
    assert all(math.isfinite(value) for value in figures.values())
    assert figures["prestep_world"] == 4 and "prestep_peak_gib" in figures
    assert reason in printed.err
    monkeypatch.setenv("RANK", "1")
    assert job.main() == 0


def test_a_launcher_trains_where_nobody_asks_for_a_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without PRESTEP the program runs as it is, with its arguments; callbacks do nothing."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, prestep.capture\nprestep.capture.before_training()\nprint(sys.argv[1:])"
    )
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("PRESTEP", raising=False)
    monkeypatch.setattr(sys, "argv", ["capture", str(script), "--lr", "1"])
    assert job.main() == 0
    assert capfd.readouterr().out == "['--lr', '1']\n"


def test_a_baseline_that_is_none_is_a_mistake_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setenv("PRESTEP", "1")
    monkeypatch.setattr(sys, "argv", ["capture", "--baseline", "no.json", str(script)])
    assert job.main() == 2
    assert (
        "expected a file that --save of prestep.capture wrote" in capfd.readouterr().err
    )
