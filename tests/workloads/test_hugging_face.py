"""config.json of every family is the named model; what is not understood is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.errors import InputError
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import ModelSpec, load_model
from tests.sample import together

LLAMA = {
    "hidden_act": "silu",
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def sizes(
    hidden: int, layers: int, heads: int, kv: int, ffn: int, vocab: int
) -> dict[str, Any]:
    return LLAMA | {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
    }


MLA = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama3.1-405b": {
        "model_type": "llama",
        **sizes(16384, 126, 128, 8, 53248, 128256),
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        **sizes(4096, 32, 32, 8, 14336, 32000),
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "smollm3-3b": {
        "model_type": "smollm3",
        **sizes(2048, 36, 16, 4, 11008, 128256),
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    "qwen2.5-72b": {
        "model_type": "qwen2",
        **sizes(8192, 80, 64, 8, 29568, 152064),
        "use_sliding_window": False,
    },
    "qwen3-32b": {
        "model_type": "qwen3",
        **sizes(5120, 64, 64, 8, 25600, 151936),
        "head_dim": 128,
        "attention_bias": False,
    },
    "qwen3-235b-a22b": {
        "model_type": "qwen3_moe",
        **sizes(4096, 94, 64, 4, 12288, 151936),
        "head_dim": 128,
        "moe_intermediate_size": 1536,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "phi-4": {
        "model_type": "phi3",
        **sizes(5120, 40, 40, 10, 17920, 100352),
    },
    "gemma-7b": {
        "model_type": "gemma",
        **sizes(3072, 28, 16, 16, 24576, 256000),
        "hidden_activation": None,
        "tie_word_embeddings": True,
    },
    "seed-oss-36b": {
        "model_type": "seed_oss",
        **sizes(5120, 64, 80, 8, 27648, 155136),
        "head_dim": 128,
        "attention_bias": True,
        "attention_out_bias": False,
    },
    "glm-4.5": {
        "model_type": "glm4_moe",
        **sizes(5120, 92, 96, 8, 12288, 151552),
        "head_dim": 128,
        "attention_bias": True,
        "use_qk_norm": True,
        "n_routed_experts": 160,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
        "first_k_dense_replace": 3,
    },
    "deepseek-v2": {
        "model_type": "deepseek_v2",
        **sizes(5120, 60, 128, 128, 12288, 102400),
        **MLA,
        "n_routed_experts": 160,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1536,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "topk_method": "group_limited_greedy",
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2",
        **sizes(2048, 27, 16, 16, 10944, 102400),
        **MLA,
        "q_lora_rank": None,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        **sizes(7168, 61, 128, 128, 18432, 129280),
        **MLA,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 1,
    },
    "kimi-k2": {
        "model_type": "kimi_k2",
        **sizes(7168, 61, 64, 64, 18432, 163840),
        **MLA,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 1,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss",
        **sizes(2880, 36, 64, 8, 2880, 201088),
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
    },
    "bloom-176b": {
        "model_type": "bloom",
        "n_embed": 14336,
        "n_layer": 70,
        "num_attention_heads": 112,
        "vocab_size": 250880,
    },
    "mpt-7b": {
        "model_type": "mpt",
        "d_model": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "expansion_ratio": 4,
        "vocab_size": 50432,
        "no_bias": True,
        "max_seq_len": 2048,
        "attn_config": {"alibi": True},
    },
    "nemotron4-340b": {
        "model_type": "nemotron",
        **sizes(18432, 96, 96, 8, 73728, 256000),
        "hidden_act": "relu2",
    },
}


def read(folder: Path, config: dict[str, Any]) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return load_model(Model(file=str(path)))


@together("name", CONFIGS)
def test_a_config_is_the_named_model(tmp_path: Path, name: str) -> None:
    """Both say the same layers, so parameters and work are those of the checkpoint."""
    found, named = (
        {key: value for key, value in vars(m).items() if key != "name"}
        for m in (read(tmp_path, CONFIGS[name]), load_model(Model(name=name)))
    )
    assert found == named


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("qwen3-235b-a22b", {"mlp_only_layers": [3]}, "mlp_only_layers"),
        ("deepseek-v3", {"moe_intermediate_size": "wide"}, "moe_ffn"),
        ("nemotron4-340b", {"hidden_act": "relu"}, "hidden_act"),
        ("qwen3-32b", {"num_experts_per_tok": 2, "hidden_act": "swish1"}, "hidden_act"),
        ("bloom-176b", {"n_layer": None}, "n_layer"),
        ("qwen3-32b", {"model_type": "jamba"}, "model_type"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, name: str, change: dict[str, Any], text: str
) -> None:
    """With the key that is wrong."""
    with pytest.raises(InputError, match=text):
        read(tmp_path, CONFIGS[name] | change)
