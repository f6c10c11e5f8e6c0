"""Vision transformers: their parameters, and what is said wrongly of them. Operations: tests/workloads/test_capture_equal.py."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.job.model import Model
from prestep.workloads.models.counts import total_parameters
from prestep.workloads.models.model import load_model

SCENARIO: dict[str, Any] = {
    "cluster": {"name": "h200-host-4", "gpus": 2},
    "model": {"name": "vit-b16", "layers": 2},
    "training": {"seq_len": 197, "micro_batch": 8},
    "parallel": {"dp": 2},
}


def test_a_base_model_has_timms_parameters() -> None:
    """timm 1.0.31, vit_base_patch16_224."""
    assert total_parameters(load_model(Model(name="vit-b16"))) == 86_567_656


@pytest.mark.parametrize(
    ("section", "key", "value", "told"),
    [
        ("training", "seq_len", 2048, "197: a picture's tokens"),
        ("model", "patch", 15, "a divisor of image_size = 224"),
        ("model", "vocab", 512, "no such key for a vit"),
        ("training", "framework", "megatron", "the model is a vision transformer"),
        ("parallel", "tp", 2, "layers of a vision transformer are not cut"),
    ],
)
def test_what_does_not_fit_is_refused(
    section: str, key: str, value: object, told: str
) -> None:
    """With what is expected."""
    tables = SCENARIO | {section: SCENARIO[section] | {key: value}}
    with pytest.raises(InputError, match=told):
        predict(parse_scenario(tables, "pictures.toml"))


@pytest.mark.parametrize("data_parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("framework", ["pytorch-eager", "pytorch-compiled"])
def test_wrappers_take_its_blocks(data_parallel: str, framework: str) -> None:
    """Checkpointed too."""
    how = {"framework": framework, "recompute": "full"}
    tables = SCENARIO | {"training": SCENARIO["training"] | how}
    tables |= {"parallel": {"dp": 2, "data_parallel": data_parallel}}
    assert predict(parse_scenario(tables, "pictures.toml")).step_time > 0
