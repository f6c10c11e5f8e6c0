"""Programs that others wrote, captured: what a row says of one that fails."""

from __future__ import annotations

import json
from pathlib import Path

from lab.sets.programs import _caught


def test_what_a_harness_caught_is_said(tmp_path: Path) -> None:
    """A harness goes on after an exception and writes its traceback: the last line of it is the row's error."""
    failed = {"id": "a", "error": "Traceback:\n  in step\nValueError: no such model\n"}
    results = tmp_path / "results.default.rank0.jsonl"
    results.write_text(json.dumps(failed) + "\n", encoding="utf-8")
    assert _caught(tmp_path) == "the program failed: ValueError: no such model"


def test_without_an_exception_nothing_is_said(tmp_path: Path) -> None:
    """A harness that wrote times, or nothing, caught nothing."""
    assert _caught(tmp_path) == ""
    timed = json.dumps({"id": "a", "step_s": [0.1]}) + "\n"
    (tmp_path / "results.default.rank0.jsonl").write_text(timed, encoding="utf-8")
    assert _caught(tmp_path) == ""
