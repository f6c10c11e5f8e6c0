"""Peaks that PyTorch's allocator measured, of steps that others' programs made, and that GPUs' owners published.

Measured: `torch.cuda.max_memory_allocated` of torchtitan 0.2.2, transformers 5.17 and DeepSpeed 0.19.8 on one and two
H200 (PyTorch 2.11): a Llama of 1.5 billion parameters, samples of 2,048 tokens. Their rows judge captured programs in
`prestep validate frameworks`; here scenarios answer. Published: pull request 1690 of torchtitan, Qwen3 32B on H100 of
96 GB, which prints what the allocator reserved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.analysis.memory import fullest
from sim.analysis.prediction import FRAGMENTATION
from sim.predict import load_fabric, lowered_on
from sim.spec.load import load_scenario, parse_scenario
from sim.spec.sections import Scenario

GIB = 2.0**30
LLAMA = {
    "kind": "transformer",
    "hidden": 2048,
    "layers": 16,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 8192,
    "vocab": 128256,
}
TITAN = {"master_weights": True, "clip_gradients": True}
MIXED = TITAN | {"reduce_dtype": "fp32"}
TRANSFORMERS = {"modules": "transformers"}
ROWS: list[tuple[str, float, str, int, int, str, str, dict[str, Any], float]] = [
    # what, GiB, framework, ranks, samples, data_parallel, recompute, [pytorch], tolerance
    (
        "titan-1b-fsdp2-b4",
        32.000,
        "pytorch-eager",
        2,
        4,
        "fsdp",
        "none",
        MIXED | {"loss": "fp32"},
        0.02,
    ),
    # Autocast leaves residuals in fp32, which scenarios count as 16 bits.
    (
        "titan-1b-b2",
        31.913,
        "pytorch-eager",
        1,
        2,
        "none",
        "none",
        TITAN | {"loss": "fp32"},
        0.04,
    ),
    (
        "titan-1b-b4-sac-compiled",
        27.448,
        "pytorch-compiled",
        1,
        4,
        "none",
        "products",
        TITAN | {"loss": "fused"},
        0.02,
    ),
    (
        "hf-llama1b-fsdp2-b4",
        30.475,
        "pytorch-eager",
        2,
        4,
        "fsdp",
        "none",
        TRANSFORMERS,
        0.02,
    ),
    (
        "ds-llama1b-z1-b2",
        23.795,
        "deepspeed-eager",
        2,
        2,
        "zero1",
        "none",
        TRANSFORMERS,
        0.02,
    ),
    (
        "ds-llama1b-z2-b2",
        23.795,
        "deepspeed-eager",
        2,
        2,
        "zero2",
        "none",
        TRANSFORMERS,
        0.02,
    ),
    (
        "ds-llama1b-z3-b4",
        39.174,
        "deepspeed-eager",
        2,
        4,
        "zero3",
        "none",
        TRANSFORMERS,
        0.02,
    ),
]


def peak(scenario: Scenario) -> float:
    """GiB that the fullest rank's allocator has handed out at most."""
    return fullest(lowered_on(scenario, load_fabric(scenario)), scenario).total / GIB


@pytest.mark.parametrize(
    (
        "measured",
        "framework",
        "ranks",
        "samples",
        "way",
        "recompute",
        "pytorch",
        "tolerance",
    ),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_a_scenario_has_the_peak_of_the_program(
    measured: float,
    framework: str,
    ranks: int,
    samples: int,
    way: str,
    recompute: str,
    pytorch: dict[str, Any],
    tolerance: float,
) -> None:
    """The same step as a scenario; nothing was fitted to these rows."""
    scenario = parse_scenario(
        {
            "cluster": {"name": "h200-host-4", "gpus": ranks},
            "model": LLAMA,
            "training": {
                "framework": framework,
                "seq_len": 2048,
                "micro_batch": samples,
                "recompute": recompute,
            },
            "parallel": {"dp": ranks, "data_parallel": way},
            "pytorch": pytorch,
        },
        "measured",
    )
    assert peak(scenario) == pytest.approx(measured, rel=tolerance)


QWEN3 = """
[model]
name = "qwen3"
flavor = "32B"
[training]
local_batch_size = {batch}
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = {tp}
[activation_checkpoint]
mode = "full"
[compile]
enable = {compiled}
components = ["model", "loss"]
"""


@pytest.mark.parametrize(
    ("hosts", "batch", "tp", "reserved"),
    [(1, 2, 1, 81.85), (4, 16, 8, 43.45), (4, 32, 8, 70.79)],
)
def test_qwen3_of_torchtitan_reserves_what_was_printed(
    tmp_path: Path, hosts: int, batch: int, tp: int, reserved: float
) -> None:
    """Shards in fp32, and the loss by parts of the vocabulary; the allocator's usual share on top."""
    path = tmp_path / "qwen3.toml"
    compiled = "true" if tp == 1 else "false"
    path.write_text(QWEN3.format(batch=batch, tp=tp, compiled=compiled))
    cluster = ["cluster.name=rail-h100-500w", f"cluster.hosts={hosts}"]
    scenario = load_scenario(path, cluster)
    assert FRAGMENTATION * peak(scenario) == pytest.approx(reserved, rel=0.1)
