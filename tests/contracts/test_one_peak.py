"""A scenario and the captured program of the same model peak at the same bytes.

`data/mixed-fsdp2*.capture` are steps of a plain Llama under `fully_shard` on four ranks (samples of 512 tokens, four a
microbatch; one and two microbatches), with fp32 shards that compute in bf16 and reduce in fp32 (MixedPrecisionPolicy), a
loss in fp32 and clipped gradients, as `prestep capture --world 4` recorded them with PyTorch 2.13.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.analysis.memory import fullest
from sim.predict import load_fabric, lowered_on
from sim.spec.load import load_scenario, parse_scenario
from sim.spec.sections import Scenario

DATA = Path(__file__).parent / "data"
MIXED = {
    "master_weights": True,
    "reduce_dtype": "fp32",
    "loss": "fp32",
    "clip_gradients": True,
}


def peak(scenario: Scenario) -> float:
    return fullest(lowered_on(scenario, load_fabric(scenario)), scenario).total


@pytest.mark.parametrize(
    ("name", "microbatches"),
    [("mixed-fsdp2", 1), ("mixed-fsdp2-accumulated", 2)],
)
def test_sharded_training_has_one_peak(name: str, microbatches: int) -> None:
    """To 1 %: the program's storages are those of PyTorch itself."""
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
            "parallel": {
                "dp": 4,
                "data_parallel": "fsdp",
                "reshard_after_forward": True,
            },
            "pytorch": MIXED,
        },
        "by hand",
    )
    assert peak(scenario) == pytest.approx(peak(program), rel=0.01)
