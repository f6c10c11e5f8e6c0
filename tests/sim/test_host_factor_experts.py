"""`host_factor_experts` of a cluster counts for models with experts, and for no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario

MODEL = {
    "kind": "transformer",
    "layers": 2,
    "hidden": 256,
    "heads": 4,
    "ffn": 512,
    "vocab": 1000,
}
EXPERTS = {"experts": 4, "experts_per_token": 2, "moe_ffn": 256}


def step(cluster: Path, model: dict[str, Any], **own: float) -> float:
    tables = {
        "cluster": {"file": str(cluster), "gpus": 1, **own},
        "model": MODEL | model,
        "training": {"micro_batch": 1, "seq_len": 64},
    }
    return predict(parse_scenario(tables, "test")).step_time


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    fact = '{{ value = {}, evidence = "fitted", source = "a test" }}'
    lines = ['extends = "h200-host-4"', f"host_factor = {fact.format(2.0)}"]
    path.write_text(
        "\n".join([*lines, f"host_factor_experts = {fact.format(1.0)}"]) + "\n"
    )
    return path


@pytest.mark.parametrize(("model", "factor"), [({}, 2.0), (EXPERTS, 1.0)])
def test_experts_have_a_factor_of_their_own(
    cluster: Path, model: dict[str, Any], factor: float
) -> None:
    """Each kind of model runs as if the scenario said the factor that the cluster has for it."""
    assert step(cluster, model) == pytest.approx(
        step(cluster, model, host_factor=factor)
    )


def test_a_scenarios_own_factor_counts_for_experts_too(cluster: Path) -> None:
    """What a scenario says of its host stands over both."""
    slow, fast = (step(cluster, EXPERTS, host_factor=f) for f in (4.0, 1.0))
    assert slow > 2 * fast
