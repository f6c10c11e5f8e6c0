"""Jobs in fp16 on GPUs whose tensor cores lack bf16."""

from __future__ import annotations

import pytest

from prestep.sim.predict import step_time
from prestep.sim.spec.load import parse_scenario


def seconds(cluster: str, precision: str) -> float:
    """A step of a small model under Megatron on one GPU, s."""
    model = {"kind": "transformer", "hidden": 1920, "layers": 2, "heads": 15}
    training = {"framework": "megatron", "global_batch": 4, "micro_batch": 4}
    said = {
        "cluster": {"name": cluster, "gpus": 1},
        "model": {**model, "vocab": 51200, "ffn": 7680, "gated": False},
        "training": {**training, "seq_len": 1024, "precision": precision},
    }
    return step_time(parse_scenario(said, "test"))


def test_a_v100_is_faster_in_fp16() -> None:
    """It computes in bf16 at the rate of fp32, an eighth of that of its tensor cores."""
    assert seconds("dgx-2", "bf16") > 2 * seconds("dgx-2", "fp16")


def test_where_both_run_alike_the_format_of_kernels_does_not_matter() -> None:
    """An A100 takes as long in either; Megatron's gradients may differ by what they move."""
    both = seconds("dgx-a100", "bf16"), seconds("dgx-a100", "fp16")
    assert both[0] == pytest.approx(both[1], rel=0.05)
