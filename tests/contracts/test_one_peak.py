"""A scenario and the captured program of the same model gather as often, and peak at the same bytes.

`data/*fsdp2*.capture` are steps of a plain Llama under `fully_shard` on four ranks (samples of 512 tokens, four a
microbatch; one and two microbatches), with fp32 shards that compute in bf16 and reduce in fp32 (MixedPrecisionPolicy), a
loss in fp32 and clipped gradients, as `prestep capture --world 4` recorded them with PyTorch 2.13:

* mixed: blocks and model wrapped with reshard_after_forward = True
* plain: the same without a word of it
* split: as torchtitan's apply_fsdp, the embedding (freed) apart from [norm, head] (not)
* kept: blocks and model wrapped with reshard_after_forward = False
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.analysis.memory import fullest
from prestep.sim.lowering import lowered_on
from prestep.sim.predict import load_fabric
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario
from tests.workloads.small import ops

DATA = Path(__file__).parent / "data"
MIXED = {
    "master_weights": True,
    "reduce_dtype": "fp32",
    "loss": "fp32",
    "clip_gradients": True,
}
FREED: dict[str, Any] = {"reshard_after_forward": True, "reshard_root": True}
PROGRAMS = {
    "mixed-fsdp2": (FREED, 1),
    "mixed-fsdp2-accumulated": (FREED, 2),
    "plain-fsdp2": ({}, 1),
    "split-fsdp2": ({"root_groups": "split"}, 1),
    "kept-fsdp2-accumulated": ({"reshard_after_forward": False}, 2),
}
# Parameters of a block, of the embedding (as many as the head's), and of the last norm.
BLOCK, TABLE, NORM = 4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024, 32000 * 1024, 1024


def same(name: str) -> tuple[Scenario, Scenario]:
    """The captured program and the scenario of the same model."""
    sharding, microbatches = PROGRAMS[name]
    program = load_scenario(DATA / f"{name}.capture", ["cluster.name=h200-host-4"])
    scenario = parse_scenario(
        {
            "cluster": {"name": "h200-host-4", "gpus": 4},
            "model": {
                "kind": "transformer",
                "hidden": 1024,
                "layers": 4,
                "heads": 16,
                "ffn": 4096,
                "vocab": 32000,
            },
            "training": {
                "seq_len": 512,
                "micro_batch": 4,
                "grad_accumulation": microbatches,
            },
            "parallel": {"dp": 4, "data_parallel": "fsdp", **sharding},
            "pytorch": MIXED,
        },
        "by hand",
    )
    return program, scenario


def peak(scenario: Scenario) -> float:
    return fullest(lowered_on(scenario, load_fabric(scenario))).total


def exchanges(scenario: Scenario) -> Counter[tuple[str, float]]:
    """All-gathers and reduce-scatters of a step by their whole bytes."""
    low = lowered_on(scenario, load_fabric(scenario))
    pairs = ((c.op, c.size) for op in ops(low) for c in op.comms)
    return Counter(pair for pair in pairs if pair[0] != "all_reduce")


@pytest.mark.parametrize("name", PROGRAMS)
def test_sharded_training_has_one_peak(name: str) -> None:
    """To 0.5 %: the program's storages are those of PyTorch itself."""
    program, scenario = same(name)
    assert peak(scenario) == pytest.approx(peak(program), rel=0.005)


@pytest.mark.parametrize(
    ("name", "blocks", "outside"),
    [
        ("mixed-fsdp2", 8, {2 * TABLE + NORM: 2}),
        ("mixed-fsdp2-accumulated", 16, {2 * TABLE + NORM: 4}),
        ("plain-fsdp2", 8, {2 * TABLE + NORM: 1}),
        ("split-fsdp2", 8, {TABLE: 2, TABLE + NORM: 1}),
        ("kept-fsdp2-accumulated", 8, {2 * TABLE + NORM: 2}),
    ],
)
def test_sharded_training_gathers_as_often(
    name: str, blocks: int, outside: dict[int, int]
) -> None:
    """Each group's parameters in bf16 by the policy's count, its gradients once in fp32: in PyTorch, and here."""
    expected = Counter({("all_gather", 2.0 * BLOCK): blocks})
    expected |= {("all_gather", 2.0 * n): times for n, times in outside.items()}
    expected |= {("reduce_scatter", 4.0 * BLOCK): 4}
    expected |= {("reduce_scatter", 4.0 * n): 1 for n in outside}
    program, scenario = same(name)
    assert exchanges(program) == expected
    assert exchanges(scenario) == expected
