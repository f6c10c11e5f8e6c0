"""Configurations of models of 2025 and 2026: sizes as their makers print them, and reasons for what is not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.models.counts import active_parameters, total_parameters
from prestep.workloads.models.model import ModelSpec, load_model

LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
APERTUS = LLAMA | {
    "model_type": "apertus",
    "intermediate_size": 21504,
    "vocab_size": 131072,
    "hidden_act": "xielu",
}
LING_LITE = {
    "model_type": "bailing_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "vocab_size": 126464,
    "tie_word_embeddings": False,
}
GRANITE = {
    "model_type": "granitemoehybrid",
    "hidden_size": 1536,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts": 62,
    "num_experts_per_tok": 6,
    "vocab_size": 100352,
    "mamba_n_heads": 48,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "tie_word_embeddings": True,
    "layer_types": (["mamba"] * 9 + ["attention"]) * 4,
}
#: What a token meets of Granite by hand, in billions: projections of 36 scans into z, x, B, C and steps and back, four
#: attentions, six experts and two experts' width more in 40 layers, the embedding. Its card says 1.
SCANS = 36 * 1536 * (2 * 3072 + 2 * 128 + 48 + 3072)
ATTENTIONS = 4 * 1536 * 128 * (12 + 2 * 4 + 12)
EXPERTS = 40 * 3 * 1536 * 512 * (6 + 2)
BY_HAND = (SCANS + ATTENTIONS + EXPERTS + 100352 * 1536) / 1e9
#: Billions of parameters by their makers' model cards, and of those that a token meets.
PUBLISHED = {
    "apertus": (APERTUS, 8.05, 8.05),
    "ling": (LING_LITE, 16.8, 2.75),
    "granite": (GRANITE, 7, BY_HAND),
}


def spec(folder: Path, config: dict[str, Any]) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    tables = {
        "cluster": {"name": "dgx-h100"},
        "model": {"file": str(path)},
        "training": {"framework": "megatron", "seq_len": 2048},
        "parallel": {"dp": 8},
    }
    return load_model(parse_scenario(tables, "test").model)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_of_model_cards(name: str, tmp_path: Path) -> None:
    """To the last digit that a card prints."""
    config, total, active = PUBLISHED[name]
    made = spec(tmp_path, config)
    digits = len(str(total).partition(".")[2])
    assert round(total_parameters(made) / 1e9, digits) == total
    assert active_parameters(made) / 1e9 == pytest.approx(active, rel=0.03)


def test_windows_of_three_layers_in_four(tmp_path: Path) -> None:
    """OLMo 3: every fourth layer sees all tokens."""
    kinds = (["sliding_attention"] * 3 + ["full_attention"]) * 8
    olmo = LLAMA | {"model_type": "olmo3", "layer_types": kinds, "sliding_window": 4096}
    made = spec(tmp_path, olmo)
    assert (made.window, made.window_every, made.qk_norm) == (4096, 4, True)
    kinds.reverse()
    with pytest.raises(InputError, match="layer_types"):
        spec(tmp_path, olmo)


def test_text_models_of_those_that_see(tmp_path: Path) -> None:
    """The text model of Qwen3-VL is a Qwen3, whatever the whole is called."""
    text = LLAMA | {"model_type": "qwen3_vl_text", "head_dim": 128}
    whole = {
        "model_type": "qwen3_vl",
        "text_config": text,
        "vision_config": {"depth": 27},
    }
    plain = spec(tmp_path, LLAMA | {"model_type": "qwen3", "head_dim": 128})
    assert spec(tmp_path, whole) == plain


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("gemma3_text", "norm behind"),
        ("lfm2_moe", "convolutions"),
        ("falcon", "beside each other"),
    ],
)
def test_what_is_not_read_says_why(family: str, why: str, tmp_path: Path) -> None:
    """The block that no layer here has, and not a list of other names."""
    with pytest.raises(InputError, match=why):
        spec(tmp_path, LLAMA | {"model_type": family})


def test_a_new_name_of_known_layers_is_told_how_to_say_so(tmp_path: Path) -> None:
    """The hint's own way is read."""
    with pytest.raises(InputError, match='"model_type": "llama" in a copy'):
        spec(tmp_path, LLAMA | {"model_type": "brand_new"})
    assert spec(tmp_path, LLAMA | {"model_type": "llama"}).layers == 32
