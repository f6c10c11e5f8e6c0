"""Scripts of users may start processes as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from prestep.sim import api
print("begun")
rows = api.sweep(sys.argv[1], {"training.micro_batch": [1, 2]}, sys.argv[2], jobs=2)
print(len(rows), "rows")
"""
SCENARIO = Path(__file__).parents[2] / "workloads" / "scenarios" / "mlp-ddp4.toml"


@pytest.mark.slow
def test_a_script_without_a_guard_sweeps(tmp_path: Path) -> None:
    """It runs once, not again in every process, and its folder has every run."""
    script = tmp_path / "study.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(SCENARIO), str(tmp_path / "out")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines() == ["begun", "2 rows"]
