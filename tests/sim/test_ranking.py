"""Ranking by time, energy or cost: laws of the objective, and the commands that take it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from prestep import cli
from prestep.sim.analysis.cost import Prices
from prestep.sim.errors import InputError
from prestep.sim.studies.ranking import COST, ENERGY, RANKS, Objective, objective_of

NUMBER = st.floats(1e-3, 1e6)
PRICES = Prices(2.0, 0.1, 1.2)


@given(by=st.sampled_from(RANKS), time=NUMBER, watts=NUMBER, more=st.floats(1, 10))
def test_a_longer_or_hungrier_step_never_ranks_better(
    by: str, time: float, watts: float, more: float
) -> None:
    """Scores grow with seconds and with watts, so a bound on both is a bound on the score."""
    objective = Objective(by, PRICES)
    score = objective.score(time, 8, watts)
    assert objective.score(more * time, 8, watts) >= score
    assert objective.score(time, 8, more * watts) >= score


def test_a_cost_is_hours_of_gpus_and_energy() -> None:
    """An hour of eight GPUs at a kilowatt in all costs their price and a kilowatt-hour with the PUE."""
    assert Objective(COST, PRICES).score(3600, 8, 1000) == pytest.approx(16 + 0.12)
    assert not Objective(COST, Prices(2.0)).needs_watts
    assert Objective(ENERGY).needs_watts


def test_a_cost_needs_a_price() -> None:
    """Nothing is ranked by money that nobody named."""
    with pytest.raises(InputError, match="--price"):
        objective_of(COST, Prices())


def sweep(folder: Path, *options: str) -> Result:
    grid = "gpu.power_limit=700W,450W"
    fixed = ["sweep", "llama1b-ddp4", "--grid", grid, "-o", str(folder), "--jobs", "1"]
    executor = ["--executor", "threads"]
    return CliRunner().invoke(cli.main, [*fixed, *executor, *options])


def test_a_sweep_ranks_by_what_was_asked(tmp_path: Path) -> None:
    """The fastest limit is the highest, the one of least energy lower; prices of GPUs favour the fastest again."""
    for options, best in (
        ((), "700W"),
        (("--rank-by", "energy"), "450W"),
        (("--rank-by", "cost", "--price", "2", "--price-per-kwh", "0.1"), "700W"),
        (("--rank-by", "cost", "--price-per-kwh", "0.1"), "450W"),
    ):
        result = sweep(tmp_path, *options)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[1].split()[0] == best
    rows = pq.ParquetFile(tmp_path / "results.parquet").read().to_pylist()
    assert all(row["step_energy"] > 0 and row["gpu_power"] > 0 for row in rows)
    assert "--price" in sweep(tmp_path, "--rank-by", "cost").output
