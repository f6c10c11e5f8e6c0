"""Llama, and those whose layers are its blocks: Mistral, Qwen, OLMo, Apertus, gpt-oss and others.

Of these some things are simpler here: dropout is left out, layers without rotation (SmolLM3) are not told apart from
others, and a llama's sliding window is not read. xIELU is one kernel, as its extension for CUDA.
Source: transformers, models/*/configuration_*.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import (
    LLAMA,
    Config,
    Family,
    activation,
    window,
)


def llama(config: Config, where: str) -> Config:
    """Attention with grouped keys and a gated feed-forward part, each behind a norm."""
    attention, mlp = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    if attention != mlp:
        found, expected = str(attention).lower(), f"{str(mlp).lower()}, as mlp_bias"
        hint = "biases of some layers only are not modelled"
        raise InputError.of(where, "attention_bias", found, expected, hint)
    return {
        "kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "activation": activation(config.get("hidden_act", "silu"), where, "hidden_act"),
        "bias": attention,
        "gated": True,
        "norm": "rms",
    }


def experts_of(config: Config, experts: str, **others: str) -> Config:
    """Experts by the names of a family: their number, and how many a token sees; ``others``: ours to theirs."""
    names = {"experts": experts, "experts_per_token": "num_experts_per_tok", **others}
    return {ours: config.get(theirs) or None for ours, theirs in names.items()}


def _mixtral(config: Config, where: str) -> Config:
    return llama(config, where) | experts_of(config, "num_local_experts")


def _seed(config: Config, where: str) -> Config:
    made = llama(config | {"attention_bias": False, "mlp_bias": False}, where)
    return made | {"qkv_bias": bool(config.get("attention_bias", True))}


def _glm4_moe(config: Config, where: str) -> Config:
    return _seed(config, where) | {
        "qk_norm": bool(config.get("use_qk_norm")) or None,
        "moe_ffn": config.get("moe_intermediate_size"),
        **experts_of(config, "n_routed_experts", shared_experts="n_shared_experts"),
        "dense_layers": config.get("first_k_dense_replace"),
        "router_bias": True,
    }


def _qwen2(config: Config, where: str) -> Config:
    return llama(config, where) | {"qkv_bias": True}


def _qwen3(config: Config, where: str) -> Config:
    return llama(config, where) | {"qk_norm": True}


def _qwen3_moe(config: Config, where: str) -> Config:
    plain = list(config.get("mlp_only_layers") or [])
    if plain != list(range(len(plain))):
        expected, hint = "the first layers only", "others are not modelled"
        raise InputError.of(where, "mlp_only_layers", str(plain), expected, hint)
    return _qwen3(config, where) | {
        "moe_ffn": config.get("moe_intermediate_size"),
        **experts_of(config, "num_experts"),
        "moe_every": config.get("decoder_sparse_step", 1),
        "dense_layers": len(plain) or None,
    }


def _minimax(config: Config, where: str) -> Config:
    wide = bool(config.get("use_qk_norm", True)) or None
    norms = {"qk_norm": wide, "qk_norm_wide": wide, "router_bias": True}
    return _mixtral(config, where) | norms


def _gpt_oss(config: Config, where: str) -> Config:
    chosen = config.get("num_experts_per_tok", config.get("experts_per_token", 4))
    return llama(config | {"attention_bias": True, "mlp_bias": True}, where) | {
        "experts": config.get("num_local_experts"),
        "experts_per_token": chosen,
        "router_bias": True,
        "sinks": True,
        "clamped": True,  # swiglu_limit, 7 where the file says none
        "window": config.get("sliding_window"),
        "window_every": 2,
    }


def _nemotron(config: Config, where: str) -> Config:
    made = llama(config | {"hidden_act": "relu"}, where)
    said = config.get("hidden_act", "relu2")
    if said != "relu2":
        raise InputError.of(where, "hidden_act", repr(said), '"relu2"')
    return made | {"gated": False, "activation": "relu2", "norm": "layer"}


def _olmo(config: Config, where: str) -> Config:
    """Norms behind each part, and of queries and keys one over all heads."""
    plain = {"mlp_bias": config.get("attention_bias")}
    norms = {"norms": "behind", "qk_norm": True, "qk_norm_wide": True}
    return llama(config | plain, where) | norms | window(config, where)


def _exaone4(config: Config, where: str) -> Config:
    return _qwen3(config, where) | {"norms": "behind"} | window(config, where)


def _apertus(config: Config, where: str) -> Config:
    if config.get("hidden_act", "xielu") != "xielu":
        found = repr(config["hidden_act"])
        raise InputError.of(where, "hidden_act", found, '"xielu"')
    made = llama(config | {"hidden_act": "gelu"}, where)
    return made | {"gated": False, "activation": "xielu", "qk_norm": True}


def _bailing(config: Config, where: str) -> Config:
    if config.get("use_bias") or config.get("use_qkv_bias"):
        expected = "false: biases of some layers only are not modelled"
        raise InputError.of(where, "use_qkv_bias", "true", expected)
    return llama(config, where) | {
        "qk_norm": bool(config.get("use_qk_norm")) or None,
        "moe_ffn": config.get("moe_intermediate_size"),
        **experts_of(config, "num_experts", shared_experts="num_shared_experts"),
        "dense_layers": config.get("first_k_dense_replace") or None,
        "router_bias": bool(config.get("moe_router_enable_expert_bias")),
    }


_KEYS = {"num_key_value_heads": 8}
_ROUTED = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_GPT_OSS = {"num_local_experts": 128, "sliding_window": 128, "head_dim": 64}
_GLM4 = {"first_k_dense_replace": 1, "n_shared_experts": 1}
_MIXED = {"num_local_experts": 8, "num_experts_per_tok": 2}
QWEN2 = Family(LLAMA, _qwen2, {"num_key_value_heads": 32})
QWEN3 = Family(LLAMA, _qwen3, {"num_key_value_heads": 32, "head_dim": 128})
QWEN3_MOE = Family(LLAMA, _qwen3_moe, {"num_key_value_heads": 4} | _ROUTED)
FAMILIES = {
    **dict.fromkeys(("llama", "smollm3", "phi3"), Family(LLAMA, llama)),
    "mistral": Family(LLAMA, llama, _KEYS),
    "mixtral": Family(LLAMA, _mixtral, _KEYS | _MIXED),
    "seed_oss": Family(LLAMA, _seed),
    "glm4_moe": Family(
        LLAMA, _glm4_moe, _GLM4 | {"n_routed_experts": 128, "num_experts_per_tok": 8}
    ),
    # Text models of those that see have the layers of the others.
    **dict.fromkeys(("qwen2", "qwen2_5_vl", "qwen2_5_vl_text"), QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_vl_text"), QWEN3),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe_text"), QWEN3_MOE),
    "minimax_m2": Family(LLAMA, _minimax, {"head_dim": 128}),
    "gpt_oss": Family(LLAMA, _gpt_oss, _KEYS | _GPT_OSS),
    "nemotron": Family(LLAMA, _nemotron),
    **dict.fromkeys(("olmo2", "olmo3"), Family(LLAMA, _olmo)),
    "exaone4": Family(LLAMA, _exaone4, {"sliding_window_pattern": 4}),
    "apertus": Family(LLAMA, _apertus),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), Family(LLAMA, _bailing)),
}
REFUSED = {
    "minimax": "lightning attention",
    "bailing_hybrid": "lightning attention with decays by head",
    "llama4_text": "attention in chunks",
}
