"""config.json of hybrids is the named model; what is not understood is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import ModelSpec, load_model

NANO: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 2688,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 1856,
    "vocab_size": 131072,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
}
NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "intermediate_size": 5120,
    "vocab_size": 151936,
    "shared_expert_intermediate_size": 512,
}
#: Qwen3.5 sees pictures too: its text model is an object of its own.
DENSE_3_5: dict[str, Any] = {
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "vision_config": {"depth": 27},
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "intermediate_size": 12288,
        "vocab_size": 248320,
        "full_attention_interval": 4,
    },
}
EXPERTS_3_5: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 4096,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
    "vocab_size": 248320,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "linear_num_value_heads": 64,
}
ATTENDING = (4, 8, 12, 16, 20, 24, 27)
LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "intermediate_size": 9216,
    "vocab_size": 163840,
    "mla_use_nope": True,
    "first_k_dense_replace": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "moe_intermediate_size": 1024,
    "num_shared_experts": 1,
    "linear_attn_config": {
        "kda_layers": [i for i in range(1, 28) if i not in ATTENDING],
        "num_heads": 32,
        "head_dim": 128,
    },
}


def read(config: dict[str, Any], folder: Path) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return load_model(Model(file=str(path)))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (NANO, "nemotron-3-nano-30b-a3b"),
        (NEXT, "qwen3-next-80b-a3b"),
        (LINEAR, "kimi-linear-48b-a3b"),
        (DENSE_3_5, "qwen3.5-9b"),
        (EXPERTS_3_5, "qwen3.5-397b-a17b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_is_the_named_model(
    config: dict[str, Any], name: str, tmp_path: Path
) -> None:
    assert replace(read(config, tmp_path), name=name) == load_model(Model(name=name))


@pytest.mark.parametrize(
    ("keys", "pattern"),
    [
        ({}, "GEGEGE*E"),
        ({"mlp_only_layers": [0, 2]}, "G-GEG-*E"),
        ({"decoder_sparse_step": 2}, "G-GEG-*E"),
        ({"num_experts": 0}, "G-G-G-*-"),
        ({"num_experts": 0, "layer_types": ["full_attention"] * 4}, "*-*-*-*-"),
    ],
)
def test_layers_of_qwen3_next_are_routed_or_plain(
    keys: dict[str, Any], pattern: str, tmp_path: Path
) -> None:
    """As Qwen3NextDecoderLayer chooses, layer by layer."""
    made = read(NEXT | {"num_hidden_layers": 4} | keys, tmp_path)
    assert made.layer_pattern == pattern
    assert (made.experts > 0) == ("E" in pattern)
    assert (made.linear_key_heads > 0) == ("G" in pattern)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (NANO | {"hybrid_override_pattern": None}, "layer_types"),
        (NANO | {"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
        (NANO | {"moe_shared_expert_intermediate_size": 1000}, "shared_expert"),
        (NEXT | {"layer_types": ["sliding_attention"] * 48}, "layer_types"),
        (LINEAR | {"linear_attn_config": None}, "layer_types"),
    ],
)
def test_what_is_not_understood_is_refused(
    config: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=key):
        read(config, tmp_path)
