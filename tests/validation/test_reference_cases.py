"""Rules of thumb of large training runs, by arithmetic: nothing was fitted to them (tests/lab has published runs)."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.api import collective
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario


def predicted(tables: Any) -> Prediction:
    return predict(parse_scenario(tables, "reference"))


def exposed(cluster: str, tokens: int) -> float:
    """Share of a step that waits for gradients and parameters: 8B, 128 GPUs, so many tokens on each."""
    shares = predicted(
        {
            "cluster": {"name": cluster, "hosts": 16},
            "model": {"name": "llama3-8b"},
            "training": {
                "framework": "megatron",
                "seq_len": tokens,
                "micro_batch": 1,
                "global_batch": 128,
            },
            "parallel": {"dp": 128, "data_parallel": "zero1"},
            "megatron": {
                "overlap_grad_reduce": True,
                "overlap_param_gather": True,
                "main_grads": "bf16",
            },
        }
    )
    return shares.breakdown["exposed_dp"] / shares.step_time


@pytest.mark.parametrize(
    ("cluster", "enough"), [("dgx-h100-superpod", 2560), ("dgx-b200-superpod", 5632)]
)
def test_data_parallelism_needs_tokens(cluster: str, enough: int) -> None:
    """Above peak flops / bandwidth of a host's GPU (2,500 tokens on H100, 5,600 on B200) gradients hide; far below not."""
    assert exposed(cluster, enough) < 0.06
    assert exposed(cluster, enough // 8) > 0.25


@pytest.mark.parametrize(("ranks", "bound"), [(8, False), (16, True)])
def test_tensor_parallelism_past_the_inner_width(ranks: int, bound: bool) -> None:
    """Past F / 2475 ranks, 11.6 for F = 28,672, gathering and scattering activations takes longer than the two products
    at peak: so 16 ranks on two hosts, and not 8 on one."""
    size, inner, peak = 2**27, 28672, 989e12  # bytes of activations; flop/s
    options = {"min_bytes": str(size), "max_bytes": str(size)}
    times = [
        collective("dgx-h100-superpod", op, ranks, **options).time.iloc[0]
        for op in ("all_gather", "reduce_scatter")
    ]
    products = 4 * (size / 2) * inner / ranks / peak
    assert (sum(times) > products) == bound


def test_overlap_hides_most_of_an_all_reduce() -> None:
    """12 ms of all-reduce beside backward passes of much the same length: more than half hides, and the step gains; less
    than the arithmetic of the networking chapter (30 %), because kernels slow down beside NCCL's."""
    tables: dict[str, Any] = {
        "cluster": {"name": "dgx-h100"},
        "model": {"kind": "mlp", "sizes": [8192] * 21},
        "training": {"micro_batch": 704},
    }
    plain, beside = (
        predicted(tables | {"parallel": {"dp": 8, "data_parallel": kind}})
        for kind in ("ddp-no-overlap", "ddp")
    )
    assert plain.breakdown["exposed_dp"] == pytest.approx(12e-3, rel=0.1)
    assert beside.breakdown["exposed_dp"] < 0.5 * plain.breakdown["exposed_dp"]
    assert 0.12 < 1 - beside.step_time / plain.step_time < 0.30
