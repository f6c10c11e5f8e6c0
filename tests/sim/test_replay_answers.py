"""What a replay answers beside its steps: critical path, overlap, residuals, and what would be free."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from prestep.cli import main
from prestep.sim.replay.answers import overlap, path
from prestep.sim.replay.replay import replay_files
from prestep.sim.replay.report import residual
from tests.workloads.traces import synthetic


def test_the_path_covers_the_step_without_holes(tmp_path: Path) -> None:
    """Parts of the critical path add up to its length, and GPU work is most of a step that is bound by it."""
    synthetic.save(tmp_path, late=400.0)
    found = path(replay_files([tmp_path]))
    assert sum(part["seconds"] for part in found.parts()) == pytest.approx(
        found.length, rel=1e-9
    )
    assert (
        sum(s.duration for s in found.segments if s.kind in ("kernel", "communication"))
        > 0.5 * found.length
    )


def test_hidden_and_exposed_are_all_communication(tmp_path: Path) -> None:
    """Communication is hidden or exposed; played as recorded, both sides and all phases agree."""
    synthetic.save(tmp_path)
    outcome = replay_files([tmp_path], "recorded")
    sides = overlap(outcome)
    for row in (*sides["measured"].values(), *sides["simulated"].values()):
        assert row["hidden"] + row["exposed"] == pytest.approx(row["total"])
    assert all(abs(seconds) < 20e-6 for seconds in residual(outcome).values())


def test_nothing_free_makes_a_step_longer(tmp_path: Path) -> None:
    """`--free` lists families, communication, link kinds and the host, the most saved first, in JSON and on the page."""
    synthetic.save(tmp_path)
    result = CliRunner().invoke(
        main, ["replay", str(tmp_path), "--comm", "simulated", "--free", "--json"]
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["free"]
    assert {"gemm kernels", "communication", "host", "nvlink links"} <= {
        row["free"] for row in rows
    }
    saved = [row["saved"] for row in rows]
    assert saved == sorted(saved, reverse=True) and saved[-1] > -20e-6
    page = CliRunner().invoke(main, ["replay", str(tmp_path), "--free"])
    assert "if this took no time" in page.output and "critical path" in page.output


def test_fused_kernels_are_fewer_and_no_slower(tmp_path: Path) -> None:
    """Fusing neighbours never makes a step longer, and says how many launches are gone."""
    synthetic.save(tmp_path)
    base = replay_files([tmp_path])
    fused = replay_files(
        [tmp_path], changes=["kernels.gemm+optimizer+elementwise=fused"]
    )
    assert "fused" in fused.changes[0]
    for before, after in zip(base.steps, fused.steps, strict=True):
        assert after.simulated_gpu <= before.simulated_gpu + 1e-9


@pytest.mark.parametrize(
    "change",
    ["kernels.gem+norm=fused", "kernels.communication=fused", "kernels.=fused"],
)
def test_what_cannot_be_fused_is_refused(tmp_path: Path, change: str) -> None:
    """Unknown families and communication are refused by name."""
    synthetic.save(tmp_path)
    result = CliRunner().invoke(main, ["replay", str(tmp_path), "--set", change])
    assert (
        result.exit_code != 0
        and "kernels" in result.output
        and "Traceback" not in result.output
    )
