"""Parts whose outputs Megatron discards and makes again in backward: residual streams, and a gated norm's result."""

from __future__ import annotations

from typing import Any

import pytest

from prestep.sim.analysis.prediction import Prediction
from prestep.sim.predict import predict
from prestep.sim.spec.load import parse_scenario

SEQ, LAYERS, HIDDEN = 1024, 4, 1024
STREAMS: dict[str, Any] = {
    "kind": "transformer",
    "hidden": HIDDEN,
    "layers": LAYERS,
    "heads": 16,
    "kv_heads": 1,
    "head_dim": 512,
    "ffn": 512,
    "vocab": 4096,
    "q_lora_rank": 256,
    "compress_ratios": [0] * LAYERS,
    "o_groups": 4,
    "o_lora_rank": 256,
    "streams": 4,
}
DELTA: dict[str, Any] = {
    "kind": "transformer",
    "hidden": HIDDEN,
    "heads": 8,
    "ffn": 4096,
    "vocab": 4096,
    "layer_pattern": "G-" * LAYERS,
    "linear_key_heads": 8,
    "linear_value_heads": 16,
}
#: What a token keeps of one layer that is made again, bytes: every stream around both parts of a layer, in 16 bits;
#: a value of 128 elements for each of the linear attention's heads.
KEPT = {"mhc": 2 * 4 * HIDDEN * 2, "gdn_norm_out": 16 * 128 * 2}


def run(model: dict[str, Any], *parts: str) -> Prediction:
    """A step on a host that takes no time."""
    tables = {
        "cluster": {"name": "dgx-h100", "gpus": 1, "host_factor": 0.01},
        "model": model,
        "training": {"framework": "megatron", "seq_len": SEQ},
        "parallel": {},
        "megatron": {"recompute_modules": list(parts)},
    }
    return predict(parse_scenario(tables, "test"))


@pytest.mark.parametrize(("part", "model"), [("mhc", STREAMS), ("gdn_norm_out", DELTA)])
def test_less_memory_for_more_time(part: str, model: dict[str, Any]) -> None:
    """What is made again takes time in backward, and frees at least what all but one layer had kept of it."""
    kept, again = run(model), run(model, part)
    freed = kept.peak_memory[0].activations - again.peak_memory[0].activations
    assert again.step_time > kept.step_time
    assert freed >= (LAYERS - 1) * SEQ * KEPT[part]


@pytest.mark.parametrize(("part", "model"), [("mhc", DELTA), ("gdn_norm_out", STREAMS)])
def test_a_part_that_a_model_lacks_changes_nothing(
    part: str, model: dict[str, Any]
) -> None:
    """Megatron takes the names of all modules, whatever the model has."""
    assert run(model, part).step_time == run(model).step_time
