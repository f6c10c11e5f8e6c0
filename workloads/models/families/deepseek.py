"""DeepSeek-V2 and V3, Kimi K2, Mistral 4; V3.2 and GLM-5, whose latent attention is to keys that an indexer chooses.

Source: transformers, models/{deepseek_v2,deepseek_v3,deepseek_v32,glm_moe_dsa}/configuration_*.py.
"""

from __future__ import annotations

from prestep.workloads.models.families import Config, experts_of
from prestep.workloads.models.families.llama import llama
from prestep.workloads.models.indexed import pattern_of


def latent(config: Config) -> Config:
    """Sizes of latent attention."""
    return {
        "head_dim": config.get("qk_nope_head_dim", 128),
        "q_lora_rank": config.get("q_lora_rank"),
        "kv_lora_rank": config.get("kv_lora_rank", 512),
        "rope_head_dim": config.get("qk_rope_head_dim", 64),
        "v_head_dim": config.get("v_head_dim", 128),
    }


def deepseek(config: Config, where: str) -> Config:
    """Latent attention, and experts where there are any."""
    made = llama(config, where) | {"kv_heads": None} | latent(config)
    if not config.get("n_routed_experts"):
        return made
    return made | {
        "moe_ffn": config.get("moe_intermediate_size"),
        **experts_of(config, "n_routed_experts", shared_experts="n_shared_experts"),
        "dense_layers": config.get("first_k_dense_replace", 0),
        "moe_every": config.get("moe_layer_freq", 1),
        # With "noaux_tc" a bias corrects the scores that experts are chosen by.
        "router_bias": config.get("topk_method") == "noaux_tc",
    }


def indexer(config: Config, where: str) -> Config:
    """The indexer of sparse attention, and which layers have one (GlmMoeDsaConfig; DeepSeek's all have)."""
    kinds = config.get("indexer_types") or config.get("index_topk_pattern") or ()
    every = max(config.get("index_topk_freq") or 1, 1)
    first = config.get("index_skip_topk_offset", 2)
    pattern = pattern_of(config["num_hidden_layers"], every, first, kinds)
    return {
        "index_heads": config["index_n_heads"],
        "index_head_dim": config.get("index_head_dim"),
        "index_topk": config.get("index_topk", 2048),
        "index_pattern": pattern or None,
    }
