"""Benchmarks: `make bench` times them; counted work, not seconds, is what may not grow.

Without `--benchmark-enable` each runs once and only its counts are looked at. The counts of every case are in
counts.toml; a case may do 2 % more. What does more for a reason puts its new counts there, in the same change.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.collectives.plan import Plan
from prestep.sim.collectives.wires import paths
from prestep.sim.costs import Kernel
from prestep.sim.costs.gpu import Gpu, load
from prestep.sim.exchanges import table
from prestep.sim.predict import plan
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.topologies import load_cluster
from tests.executed import Executed, executed

HERE = Path(__file__).parent
SCENARIOS = HERE.parents[1] / "workloads" / "scenarios"
TOLERANCE = 1.02
COUNTS: dict[str, dict[str, int]] = tomllib.loads(
    (HERE / "counts.toml").read_text(encoding="utf-8")
)


def gate(case: str, found: dict[str, int]) -> None:
    """Every count is known, and within tolerance of what counts.toml says."""
    assert found.keys() == COUNTS[case].keys()
    grown = {
        name: count
        for name, count in found.items()
        if count > COUNTS[case][name] * TOLERANCE
    }
    assert not grown, f"[{case}] does more than {COUNTS[case]}: {grown}"


@pytest.mark.parametrize(
    "name", ["llama8b-fsdp4", "llama8b-pp4-1f1b", "llama1b-ddp4", "llama1b-tp4"]
)
def test_a_prediction(benchmark: Any, name: str) -> None:
    """A bundled scenario from its file to an executed run of three steps."""

    def run() -> Executed:
        return executed(load_scenario(SCENARIOS / f"{name}.toml"))

    done = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    graph = done.lowered.graph
    counts = {"operations": graph.operations, "communications": len(graph.comms)}
    gate(name, counts | {"events": done.run.events, "solves": done.run.solves})


@pytest.mark.parametrize("name", ["rail-h100", "roce-h100", "aws-p5"])
def test_a_large_layout(name: str) -> None:
    """Planning 405B on 2,048 GPUs: what lies alike is planned once, however many stages and replicas there are."""
    planned = plan(parse_scenario(large(name, hosts=256), name))
    plans = paths.index_of(planned.fabric).plans.values()
    made = sum(isinstance(one, Plan) for one in plans)
    gate(f"405b-{name}", {"communications": len(planned.graph.comms), "planned": made})


def large(cluster: str, hosts: int) -> dict[str, Any]:
    """Llama 3.1 405B in 16 stages of as many hosts each."""
    replicas = hosts // 16
    return {
        "cluster": {"name": cluster, "hosts": hosts},
        "model": {"name": "llama3.1-405b"},
        "training": {
            "framework": "megatron",
            "seq_len": 8192,
            "micro_batch": 1,
            "global_batch": 16 * replicas,
        },
        "parallel": {
            "dp": replicas,
            "tp": 8,
            "pp": 16,
            "sequence_parallel": True,
            "uneven_stages": True,
            "data_parallel": "zero1",
        },
        "megatron": {"overlap_grad_reduce": True, "overlap_param_gather": True},
    }


def test_a_collective_sweep(benchmark: Any) -> None:
    """All-reduce on eight GPUs from 8 B to 4 GiB, on a fresh cluster, so that no plan is remembered."""
    rows = benchmark.pedantic(
        lambda: table.sweep(load_cluster("dgx-h200")), rounds=3, warmup_rounds=1
    )
    gate(
        "collective-sweep",
        {"sizes": len(rows), "links": sum(len(row.plan.links) for row in rows)},
    )


def test_loading_a_gpu(benchmark: Any) -> None:
    """Facts, fitted constants and the table of measured kernels from their files; the models are built when asked."""
    gpu: Gpu = benchmark.pedantic(lambda: load("h200"), rounds=3, warmup_rounds=1)
    assert gpu.sms == 132 and not gpu.tables._models


def test_asking_for_a_kernel_again(benchmark: Any) -> None:
    """A kernel that was asked for before is remembered: the models are not asked again."""
    gpu, kernel = load("h200"), Kernel("aten mm", (4096, 2048, 2048), layout="nt")
    first = gpu.duration(kernel)
    gpu.tables._models.clear()
    assert benchmark(gpu.duration, kernel) == first and not gpu.tables._models
