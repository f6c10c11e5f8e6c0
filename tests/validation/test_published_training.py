"""Rows of published training steps as scenarios."""

from __future__ import annotations

import pytest

from sim.errors import InputError
from validation.formats.published_setups import FOLDER, setup_of
from validation.sets.published import read, run_of
from validation.sets.published_scenarios import scenario_of

ROWS = {row["id"]: row for row in read(FOLDER / "rows.csv")}


def test_racks_count_trays() -> None:
    """64 GB200 are sixteen trays of four, also where a later setup without a cluster fits the row."""
    row = ROWS["bridge-0078"]
    assert scenario_of(row, setup_of(row))["cluster"] == {
        "name": "gb200-nvl64",
        "hosts": 16,
        "gpus": 64,
    }


def test_layers_that_cannot_be_cut_evenly() -> None:
    """94 layers in 96 stages: the embedding and the head are stages; 96 layers in 96 stages: they are not."""
    row = ROWS["moezoo-0004"]
    assert scenario_of(row, setup_of(row))["megatron"]["account_for_embedding"]
    plain = scenario_of(row | {"layers": "96"}, setup_of(row))
    assert "account_for_embedding" not in plain["megatron"]


def test_a_layout_of_another_size_is_told() -> None:
    """A row whose layout has not as many ranks as it has GPUs is no scenario."""
    with pytest.raises(InputError, match="dp 2 x tp 1 x pp 1 x cp 1 on 8 GPUs"):
        run_of(ROWS["nemols-0001"])


@pytest.mark.parametrize(
    ("id_", "precision"),
    [("bridge-0165", "nvfp4"), ("bridge-0266", "fp8"), ("bridge-0092", "bf16")],
)
def test_number_formats(id_: str, precision: str) -> None:
    """As the row says; pages without the column say it in words."""
    row = ROWS[id_]
    assert scenario_of(row, setup_of(row))["training"]["precision"] == precision
