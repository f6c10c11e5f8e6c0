"""A captured step: one launch, the same kernels."""

from __future__ import annotations

import pytest

from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from tests.executed import Executed, executed
from tests.workloads.small import scenario


def step(framework: str, **parallel: object) -> Executed:
    tables = {
        "cluster": {"name": "h200-host-4", "gpus": parallel.get("dp", 1)},
        "model": {"kind": "mlp", "sizes": [512, 512, 512, 1]},
        "training": {"micro_batch": 64, "framework": framework},
        "parallel": parallel,
    }
    return executed(parse_scenario(tables, "graph.toml"))


@pytest.mark.parametrize("parallel", [{}, {"dp": 4, "data_parallel": "ddp"}])
def test_a_graph_runs_the_same_kernels_sooner(parallel: dict[str, object]) -> None:
    """Kernels and communications of the eager step, which the host no longer holds up."""
    eager, graph = step("pytorch-eager", **parallel), step("cuda-graph", **parallel)
    assert graph.lowered.graph.kernels == eager.lowered.graph.kernels
    assert len(graph.lowered.graph.comms) == len(eager.lowered.graph.comms)
    assert graph.run.finished < eager.run.finished


@pytest.mark.parametrize("parallel", [{}, {"dp": 4, "data_parallel": "ddp"}])
def test_a_graph_is_launched_once(parallel: dict[str, object]) -> None:
    """All operations of a step, on all streams, are launched by one call."""
    launches = step("cuda-graph", **parallel).run.launch[0]
    assert [len(set(row.tolist())) for row in launches] == [1] * len(launches)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"dp": 4, "data_parallel": "fsdp"},
        {"tp": 4},
        {"tp": 2, "sequence_parallel": True},
        {"dp": 2, "tp": 2, "data_parallel": "fsdp"},
        {"dp": 2, "pp": 2},
    ],
)
def test_a_graph_is_never_slower(layout: dict[str, object]) -> None:
    """Nothing waits for a launch, so every layout of a small transformer gains."""
    batches = {"microbatches": 2} if "pp" in layout else {}
    eager, graph = (
        predict(scenario(training={"framework": name, **batches}, **layout))
        for name in ("pytorch-eager", "cuda-graph")
    )
    assert graph.step_time < eager.step_time and graph.breakdown.get("host", 0.0) == 0.0
    assert graph.peak_memory[0].activations == eager.peak_memory[0].activations
