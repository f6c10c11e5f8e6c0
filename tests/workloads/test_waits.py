"""Laws of waiting: what a rank waits for is called by its reason, so that what helps is what is named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prestep.sim.analysis import explain
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.exporters._words import headline
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from tests.executed import executed, reported
from tests.workloads.small import TRANSFORMER
from tests.workloads.small import scenario as eager
from tests.workloads.test_megatron_folding import LARGE, scenario

# Links of every kind that carry everything at once.
FREE = {
    f"{kind}.{attribute}": factor
    for kind in ("nvlink", "nic", "pcie", "leaf", "spine")
    for attribute, factor in (("bandwidth", "1000x"), ("latency", "0.001x"))
}
SHARDED = {"data_parallel": "zero1", "sequence_parallel": True}
LAYOUTS = st.sampled_from(
    [
        {"tp": 4, "sequence_parallel": True},
        {"cp": 4},
        {"tp": 2, "dp": 4, **SHARDED},
        {"tp": 2, "dp": 2, "pp": 2, **SHARDED},
        {"pp": 4, "dp": 2, "data_parallel": "zero1"},
    ]
)


@cache
def llama405b(**sets: str) -> Prediction:
    """Llama 3.1 405B with a quarter of its layers, on 128 GPUs of a SuperPOD, eight stages."""
    tables = {
        "cluster": {"name": "dgx-h100-superpod", "gpus": 128, "set": sets},
        "model": {"name": "llama3.1-405b", "layers": 32},
        "training": {
            "framework": "megatron",
            "seq_len": 8192,
            "micro_batch": 1,
            "global_batch": 32,
        },
        "parallel": {"tp": 8, "pp": 8, "dp": 2, **SHARDED},
    }
    return predict(parse_scenario(tables, "405b.toml"))


def megatron(
    layout: dict[str, Any], faults: dict[str, Any] | None = None, **sets: str
) -> Prediction:
    return reported(executed(scenario(dict(layout), faults, **LARGE, sets=sets)))


def communication(result: Prediction) -> float:
    """Seconds of exposed communication along all axes."""
    parts = result.breakdown.items()
    return sum(seconds for name, seconds in parts if name.startswith("exposed_"))


def test_a_stage_in_the_norms_all_reduce_waits_for_the_pipeline() -> None:
    """Four bytes are no communication to speak of: who comes early to them waits for the last stage."""
    result = llama405b()
    stages, microbatches = 8, 16
    share = (stages - 1) / (stages - 1 + microbatches)
    assert result.breakdown["exposed_mp"] < 1e-3 * result.step_time
    assert result.breakdown["bubble"] == pytest.approx(
        share * result.step_time, rel=0.15
    )
    named = explain.text(result.to_dict())
    assert "communication of mp" not in named


def test_faster_links_take_away_what_is_called_communication() -> None:
    """Links of 1,000 times: what is left is the rate of NCCL's channels, and no waiting for other stages."""
    base, free = llama405b(), llama405b(**FREE)
    assert free.breakdown["exposed_mp"] < 1e-4 * free.step_time
    assert communication(free) < 0.4 * communication(base)
    assert communication(free) < 0.05 * free.step_time
    saved = base.step_time - free.step_time
    assert saved <= communication(base) + base.breakdown["bubble"]


@settings(max_examples=5, deadline=None, derandomize=True)
@given(LAYOUTS, st.sampled_from((0.5, 0.25)))
def test_slower_arithmetic_is_no_communication(
    layout: dict[str, Any], factor: float
) -> None:
    """Where only GPUs get slower, waiting that is called communication does not grow."""
    base = megatron(layout)
    slow = megatron(layout, **{"gpu.flops": f"{factor}x"})
    assert slow.step_time > base.step_time
    assert communication(slow) <= communication(base) + 0.01 * base.step_time


@settings(max_examples=5, deadline=None, derandomize=True)
@given(LAYOUTS, st.sampled_from((1.5, 3.0)))
def test_a_slow_rank_is_no_communication(layout: dict[str, Any], factor: float) -> None:
    """Nor where one of them does: the others wait for it, in its stage as for a slower rank, else for the pipeline."""
    base = megatron(layout)
    slow = megatron(layout, {"slow_rank": 1, "slow_factor": factor})
    assert communication(slow) <= communication(base) + 0.01 * base.step_time
    assert (slow.breakdown["straggler"] > 0) == ("dp" in layout)
    if "pp" not in layout:
        assert slow.breakdown["bubble"] == 0


def test_who_waits_for_a_slow_replica_waits_for_a_slower_rank() -> None:
    """Three of four replicas wait for the fourth as long as it computes longer; equal ones wait for nobody."""
    wide = TRANSFORMER | {"hidden": 4096, "heads": 32, "ffn": 16384}
    alike = eager(wide, {"seq_len": 2048}, dp=4, data_parallel="ddp-no-overlap")
    equal = predict(alike)
    assert equal.breakdown["straggler"] == pytest.approx(
        0.0, abs=1e-3 * equal.step_time
    )
    faults = replace(alike.faults, slow_rank=3, slow_factor=2.0)
    slow = predict(replace(alike, faults=faults))
    longer = slow.step_time - equal.step_time
    assert slow.breakdown["straggler"] == pytest.approx(0.75 * longer, rel=0.1)


@pytest.mark.parametrize("axis", ["cp", "tp", "dp", "pp"])
def test_every_axis_is_in_the_layout(axis: str) -> None:
    """Eight GPUs along any axis are no single GPU, in the header and in the JSON."""
    sizes = {"pp": 4} if axis == "pp" else {axis: 8}
    result = megatron(sizes)
    assert result.scenario["layout"] == f"{axis} {sizes[axis]}"
    assert result.to_dict()["scenario"]["layout"] == f"{axis} {sizes[axis]}"


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_the_peak_of_an_mfu_is_named(precision: str) -> None:
    """The header says of which formats' peak the MFU is a share; those of the products are in the JSON."""
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": 1},
        "model": {"name": "llama3-8b", "layers": 2},
        "training": {
            "framework": "megatron",
            "seq_len": 2048,
            "micro_batch": 1,
            "global_batch": 1,
            "precision": precision,
        },
        "parallel": {"data_parallel": "none"},
    }
    result = predict(parse_scenario(tables, "peak.toml"))
    peak = str(result.scenario["peak"])
    assert precision in peak
    assert dict(headline(result))["model flops"].endswith(f" of the peak of {peak}")
