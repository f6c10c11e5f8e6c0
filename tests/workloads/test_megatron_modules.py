"""Whose modules a step of Megatron calls, by what its host takes."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.host_costs import host_costs

#: A test of Megatron-LM's own (gpt3_mcore_tp1_pp1 and its like), which the host bounds.
TINY: dict[str, Any] = {
    "cluster": {"name": "dgx-h100"},
    "model": {
        "kind": "transformer",
        "hidden": 512,
        "layers": 12,
        "heads": 8,
        "ffn": 2048,
        "vocab": 50304,
    },
    "training": {
        "framework": "megatron",
        "seq_len": 1024,
        "micro_batch": 4,
        "global_batch": 32,
    },
    "parallel": {"dp": 8, "data_parallel": "zero1"},
}


def step(modules: str, **parallel: int) -> float:
    degrees = {"dp": 8} | parallel
    tables = TINY | {
        "parallel": TINY["parallel"] | degrees,
        "megatron": {"transformer_impl": modules, "attention": "unfused"},
    }
    return predict(parse_scenario(tables, "test")).step_time


def test_modules_of_2022_are_leaner_than_todays() -> None:
    assert step("legacy") < step("local")


def test_own_modules_share_what_stands_around_them() -> None:
    """The same layers around projections and attention: their prices are one table's."""
    engine, own = host_costs("megatron"), host_costs("megatron-local")
    for name in ("module", "linear", "router", "expert_layer", "optimizer_param"):
        assert engine[name] == own[name] > 0


@pytest.mark.parametrize(
    ("parallel", "measured"),
    [({"dp": 4, "pp": 2}, 0.0825), ({"dp": 2, "tp": 4}, 0.1918)],
)
def test_steps_of_megatrons_own_tests(
    parallel: dict[str, int], measured: float
) -> None:
    """A DGX H100, April 2026 (megatron_steps.csv), less the 30 ms of logs: between half and one and a half of it."""
    ratio = step("local", **parallel) / (measured - 0.03)
    assert 0.5 < ratio < 1.5
    assert step("legacy", **parallel) / (measured - 0.03) < 0.5
