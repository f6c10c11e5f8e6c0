"""A sweep whose folder was damaged: what was changed is run again, what is no result is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from prestep import cli
from tests.fuzz.values import VALUES


def _swept(folder: Path) -> list[dict[str, Any]]:
    words = ("sweep", "mlp-ddp4", "--grid", "training.micro_batch=4,8")
    done = CliRunner().invoke(
        cli.main,
        [*words, "-o", str(folder), "--jobs", "1", "--executor", "threads"],
    )
    assert done.exit_code == 0, done.output
    return pq.read_table(folder / "results.parquet").to_pylist()


def test_a_run_that_was_changed_is_run_again(tmp_path: Path) -> None:
    """Any value of another kind, or none, in any key: the table is as it was."""
    whole = _swept(tmp_path)
    path = next((tmp_path / "runs").glob("*.json"))
    good = json.loads(path.read_text())
    for number, key in enumerate(good):
        path.write_text(json.dumps({**good, key: VALUES[number % len(VALUES)]}))
        assert _swept(tmp_path) == whole, key
        path.write_text(json.dumps({k: v for k, v in good.items() if k != key}))
        assert _swept(tmp_path) == whole, key
    assert json.loads(path.read_text()) == good


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 1000, b"PAR1" + b"\0" * 99])
def test_results_that_are_none_are_refused(data: bytes, tmp_path: Path) -> None:
    """Nothing, a head alone, text: exit 2 with the file's name."""
    (tmp_path / "results.parquet").write_bytes(data)
    words = ["plot", str(tmp_path), "--x", "training.micro_batch"]
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 2 and "results.parquet" in done.stderr, done.output


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    """Columns that every sweep has are named."""
    path = tmp_path / "results.parquet"
    pq.write_table(pa.table({"set.training.micro_batch": ["1"], "x": [1.0]}), path)
    words = ["plot", str(tmp_path), "--x", "training.micro_batch"]
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 2 and "no column error, step_time" in done.stderr


def test_lists_in_place_of_values_are_refused(tmp_path: Path) -> None:
    """A column that a sweep never writes is named."""
    path = tmp_path / "results.parquet"
    table = {"set.training.micro_batch": [[1, 2]], "error": [""], "step_time": [1.0]}
    pq.write_table(pa.table(table), path)
    words = ["plot", str(tmp_path), "--x", "training.micro_batch"]
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 2 and "lists in set.training.micro_batch" in done.stderr
