"""GPUs that are not as their model: what a kernel takes on them, and which ranks are simulated."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from prestep.sim.costs import Kernel, load_gpu
from prestep.sim.costs.changed import AS_MODEL, Speed, changed
from prestep.sim.planning.fleet import fleet_of, rest_of
from prestep.sim.spec.load import parse_scenario
from prestep.topologies import load_cluster
from prestep.workloads.torch import lower as lowering
from tests.executed import Executed, executed, reported, step_time

H200 = load_gpu("h200")
GEMM = Kernel("aten mm", (8192, 8192, 8192), layout="nt")
COPY = Kernel("aten copy", (2**28,), bytes=4.0 * 2**28)
MODEL = {
    "kind": "transformer",
    "hidden": 1024,
    "layers": 2,
    "heads": 8,
    "ffn": 2816,
    "vocab": 32000,
}


def run(
    *, parallel: dict[str, Any] | None = None, name: str = "h200-host-4", **changes: str
) -> Executed:
    """A small step with GPUs changed: `gpu0_flops` is written `gpu[0].flops`."""
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    overrides = {
        f"gpu[{k[3 : k.index('.')]}]{k[k.index('.') :]}" if k[3].isdigit() else k: v
        for k, v in overrides.items()
    }
    tables = {
        "cluster": {"name": name, "set": overrides},
        "model": MODEL,
        "training": {"seq_len": 2048, "micro_batch": 4},
        "parallel": parallel or {"dp": 4, "data_parallel": "fsdp"},
    }
    return executed(parse_scenario(tables, "fleet"))


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
def test_a_kernel_follows_the_limit_that_bounds_it(factor: float) -> None:
    """Arithmetic a GEMM, memory a copy; neither the other's."""
    for kernel, own, other in (
        (GEMM, "flops", "hbm_bandwidth"),
        (COPY, "hbm_bandwidth", "flops"),
    ):
        same = changed(H200, Speed(**{other: factor})).duration(kernel)
        assert same == pytest.approx(H200.duration(kernel), rel=1e-9)
        slower = changed(H200, Speed(**{own: factor})).duration(kernel)
        assert slower / H200.duration(kernel) == pytest.approx(
            1 / factor, rel=0.1 * factor
        )


def test_a_clock_counts_for_arithmetic() -> None:
    """As much as flops for a GEMM; the model itself stays what it was, and no change is no other GPU."""
    slow = Speed(clock=0.8)
    assert changed(H200, slow).duration(GEMM) == changed(
        H200, Speed(flops=0.8)
    ).duration(GEMM)
    assert changed(H200, AS_MODEL) is H200
    assert (
        changed(H200, slow).evidence(GEMM) == "guess" and H200.evidence(GEMM) != "guess"
    )


def test_quantities_are_relative_to_the_model() -> None:
    """Half of the datasheet's bandwidth is 0.5x; a later factor counts on top."""
    half = {
        "gpu.hbm_bandwidth": f"{H200.bandwidth / 2:.6g} B/s",
        "gpu[1].hbm_bandwidth": "0.5x",
    }
    fabric = load_cluster("h200-host-4", overrides=half)
    speeds = fleet_of(fabric, H200, fabric.gpus).speeds
    assert [s.hbm_bandwidth for s in speeds] == pytest.approx([0.5, 0.25, 0.5, 0.5])


def test_all_gpus_alike_stay_folded() -> None:
    """A change of every GPU is another GPU, simulated once, and its peak counts for the MFU."""
    base, slow = run(), run(gpu__flops="0.5x")
    assert len(slow.lowered.graph.programs) == len(base.lowered.graph.programs) == 1
    assert slow.gpu.peak["bf16"] == base.gpu.peak["bf16"] / 2
    assert step_time(slow) > step_time(base)


def test_one_slow_gpu_is_simulated_beside_one_of_the_others() -> None:
    """Two ranks instead of four; the slow one holds everybody up, less than if all were slow."""
    one, every, base = run(gpu2__clock="0.5x"), run(gpu__clock="0.5x"), run()
    assert {r: len(m) for r, m in one.lowered.graph.represents.items()} == {0: 3, 2: 1}
    assert step_time(base) < step_time(one) <= step_time(every) * (1 + 1e-9)
    assert sorted(reported(one).step_time_by_rank) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "parallel",
    [
        {"dp": 4, "data_parallel": "fsdp"},
        {"dp": 2, "pp": 2, "microbatches": 4, "data_parallel": "ddp-no-overlap"},
    ],
)
def test_partly_folded_and_unfolded_agree(
    parallel: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulating every rank gives the same step as simulating each kind of replica once."""
    folded = run(parallel=parallel, gpu3__clock="0.7x")
    monkeypatch.setattr(lowering, "_kinds", lambda *_: ())
    unfolded = run(parallel=parallel, gpu3__clock="0.7x")
    assert (
        len(folded.lowered.graph.programs) <= len(unfolded.lowered.graph.programs) == 4
    )
    assert step_time(folded) == pytest.approx(step_time(unfolded), rel=1e-9)
    assert folded.run.bytes.carried == pytest.approx(
        unfolded.run.bytes.carried, rel=1e-9
    )
    assert reported(folded).mfu == pytest.approx(reported(unfolded).mfu, rel=1e-9)


def test_unlike_gpus_in_a_tensor_parallel_group_unfold_every_rank() -> None:
    """They wait for each other inside every layer."""
    slow = run(parallel={"tp": 4}, gpu1__flops="0.05x")
    assert len(slow.lowered.graph.programs) == 4
    assert reported(slow).mfu < reported(run(parallel={"tp": 4})).mfu


def test_a_gpu_that_no_rank_uses_changes_nothing() -> None:
    """Rank 3 of a step on two GPUs does not exist."""
    two = {"dp": 2, "data_parallel": "fsdp"}
    tables = {"model": MODEL, "training": {"micro_batch": 4}, "parallel": two}
    steps = [
        executed(
            parse_scenario(
                {"cluster": {"name": "h200-host-4", "gpus": 2, "set": s}, **tables},
                "two",
            )
        )
        for s in ({}, {"gpu[3].clock": "0.1x"})
    ]
    assert step_time(steps[0]) == step_time(steps[1])
    assert np.array_equal(steps[0].run.bytes.carried, steps[1].run.bytes.carried)


@pytest.mark.parametrize(
    "parallel",
    [
        {"dp": 4, "data_parallel": "fsdp"},
        {"dp": 4, "data_parallel": "ddp"},
        {"dp": 2, "pp": 2, "microbatches": 4, "data_parallel": "ddp-no-overlap"},
        {"tp": 4},
    ],
)
def test_a_gpu_that_is_hardly_slower_changes_hardly_anything(
    parallel: dict[str, Any],
) -> None:
    """Where ranks are simulated apart for next to nothing, the step is that of the folded ones."""
    base = step_time(run(parallel=parallel))
    assert step_time(run(parallel=parallel, gpu1__clock="0.9999999x")) == (
        pytest.approx(base, rel=1e-6)
    )


def test_a_slower_gpu_never_shortens_the_step() -> None:
    """From hardly slower to half as fast; the chance of the others counts until the one is slower than they are."""
    clocks = ("1x", "0.999999x", "0.999x", "0.99x", "0.9x", "0.5x")
    steps = [step_time(run(gpu1__clock=clock)) for clock in clocks]
    for quicker, slower in pairwise(steps):
        assert slower >= quicker * (1 - 1e-9)


@pytest.mark.parametrize("together", [1.0, 1.005, 1.02])
def test_the_rest_of_the_slowest(together: float) -> None:
    """All of it for a rank like the others; whoever is slower than the slowest of them needs none of it."""
    assert rest_of(together, 1.0) == together
    assert rest_of(together, 1.5) == 1.0
    factors = [slower * rest_of(together, slower) for slower in (1.0, 1.001, 1.01, 1.1)]
    assert factors == sorted(factors)
