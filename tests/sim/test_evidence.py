"""Fallbacks: what no measurement covers is counted, with its share of the time."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from prestep.sim.analysis.evidence import _plan_reasons
from prestep.sim.analysis.prediction import Fallback, Prediction
from prestep.sim.costs import Kernel, load_gpu
from prestep.sim.costs.interference import BUNDLED, is_known
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from tests.sample import together

H200 = load_gpu("h200")
MLP = {"kind": "mlp", "sizes": [1024, 1024, 1024, 1]}
PLAIN = {"name": "llama3-125m-plain", "layers": 2}


def run(
    model: Mapping[str, Any], cluster: Mapping[str, Any], **parallel: Any
) -> Prediction:
    training = (
        {"micro_batch": 4, "seq_len": 2048} if model is PLAIN else {"micro_batch": 64}
    )
    tables = {
        "cluster": cluster,
        "model": model,
        "training": training,
        "parallel": parallel,
    }
    return predict(parse_scenario(tables, "fallbacks.toml"))


def found(result: Prediction) -> dict[str, Fallback]:
    return {fallback.what: fallback for fallback in result.fallbacks}


def test_what_was_measured_is_no_fallback() -> None:
    """A model like the measured ones, on the measured GPU."""
    assert run(PLAIN, {"name": "h200-host-4", "gpus": 1}).fallbacks == ()


@together(
    ("kernel", "instead"),
    [
        (Kernel("aten copy", (2**24,), bytes=4.0 * 2**24), ""),
        (
            Kernel("aten copy", (2**40,), bytes=4.0 * 2**40),
            "extrapolation of its table",
        ),
        (Kernel("aten mm", (4096, 4096, 4096), layout="nt"), ""),
        (
            Kernel("aten mm", (2**24, 2**20, 2**20), layout="nt"),
            "extrapolation of its table",
        ),
        (Kernel("fused_gelu", (2**24,)), "the table of fused_silu"),
        (
            Kernel("aten silu", (2**24,), layout="column"),
            "the table of operations like it",
        ),
        (Kernel("gather", (2**24,), dtype="fp32"), "no table"),
    ],
)
def test_a_kernel_says_what_stands_in_for_its_table(
    kernel: Kernel, instead: str
) -> None:
    """Nothing, another kind's or layout's table, an extrapolation, or no table at all."""
    assert H200.basis(kernel).reason == instead
    # The extrapolations are to more than eight times the measured sizes.
    assert (H200.evidence(kernel) in ("guess", "datasheet")) == bool(instead)


def test_another_gpu_s_table_is_named() -> None:
    """An H100 has times of operations, but no table of kernels; an A100 has neither."""
    copy = Kernel("aten copy", (2**20,), bytes=4.0 * 2**20)
    lent = "the h200's table"
    assert load_gpu("a100").basis(copy).reason == lent
    both = f"{lent}, by an operation measured on both"
    assert load_gpu("h100").basis(Kernel("sum", (2**20,))).reason == both


def test_kernels_beside_communication_need_a_factor() -> None:
    """What the default factor slows is counted as a guess, for as many kernels as lie beside a collective."""
    assert is_known(Kernel("aten add", (64,), bytes=6.0 * 64)) and not is_known(
        Kernel("aten div", (64,), bytes=4.0 * 64)
    )
    assert BUNDLED.slowdown(
        Kernel("aten div", (64,), bytes=4.0 * 64), 24, 132
    ) == pytest.approx(1.2)
    beside = found(run(PLAIN, {"name": "h200-host-4"}, dp=4))[
        "kernel aten embedding_dense_backward beside communication"
    ]
    assert beside.grade == "guess" and beside.count > 0 and 0 < beside.share < 0.1
    alone = found(
        run(PLAIN, {"name": "h200-host-4"}, dp=4, data_parallel="ddp-no-overlap")
    )
    assert not any(what.endswith("beside communication") for what in alone)


def test_a_choice_that_may_be_another_is_counted() -> None:
    """A note of the planner is a fallback, besides the constants of another GPU."""
    plan: Any = SimpleNamespace(
        op="all_reduce",
        algo="ring",
        proto="LL",
        evidence="guess",
        notes=("without SHARP",),
    )
    assert list(_plan_reasons(plan)) == [
        ("all_reduce ring LL", "guess"),
        ("all_reduce ring LL: without SHARP", "guess"),
    ]


def test_a_host_of_unknown_speed_is_counted_where_gpus_wait_for_it() -> None:
    """Only said speeds count as known: in the cluster's file or in the scenario."""
    name = "host_factor of dgx-h200: taken as 1"
    unknown = run(MLP, {"name": "dgx-h200", "gpus": 1})
    assert found(unknown)[name].share == pytest.approx(
        unknown.breakdown["host"] / unknown.step_time
    )
    assert name not in found(
        run(MLP, {"name": "dgx-h200", "gpus": 1, "host_factor": 1.0})
    )


def test_fallbacks_are_in_the_json_and_most_time_comes_first() -> None:
    """`what`, `grade`, `count`, `share`; the refusal of --strict has a line for each."""
    result = run(MLP, {"name": "dgx-h100"}, dp=8)
    shares = [fallback.share for fallback in result.fallbacks]
    assert shares == sorted(shares, reverse=True) and all(
        0 <= share <= 1 for share in shares
    )
    assert all(
        row.keys() == {"what", "grade", "count", "share"}
        for row in result.to_dict()["fallbacks"]
    )
    lines = result.refusal.splitlines()
    assert len(lines) == len(result.fallbacks) + 1 and "--strict" in lines[-1]
