"""Figures that are often quoted of large training runs, as scenarios: nothing was fitted to them."""

from __future__ import annotations

from typing import Any

import pytest

from lab.bench.large import DEEPSEEK
from lab.formats.published_setups import FOLDER
from lab.sets.published import read, run_of
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.api import collective
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario

ROWS = {row["id"]: row for row in read(FOLDER / "rows.csv")}


def predicted(tables: Any) -> Prediction:
    return predict(parse_scenario(tables, "reference"))


def test_smollm3_on_384_gpus() -> None:
    """SmolLM3 3B on 384 H100, TP 2, eager PyTorch: near 30 % MFU (Hugging Face's training playbook)."""
    assert predicted(run_of(ROWS["misc-0004"]).scenario).mfu == pytest.approx(
        0.30, abs=0.03
    )


@pytest.mark.slow
def test_deepseek_v3_on_2048_gpus() -> None:
    """DeepSeek-V3 on 2,048 H800, DualPipe, EP 64, fp8: 20 to 30 % of the fp8 peak."""
    assert 0.20 <= predicted(DEEPSEEK).mfu <= 0.30


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    reason="42.1 % with eight virtual stages, 36 % with four; the paper does not say how many",
)
def test_llama3_405b_on_16384_gpus() -> None:
    """Llama 3 405B at 8,192 tokens on 16,384 GPUs: 38 to 41 % MFU (the paper's table 4)."""
    assert 0.38 <= predicted(run_of(ROWS["llama3-0002"]).scenario).mfu <= 0.41


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
