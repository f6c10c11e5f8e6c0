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
    Reader,
    activation,
    as_wide,
    dense_layers,
    made_of,
    window,
)
from prestep.workloads.operation import words


def llama(config: Config, where: str) -> Config:
    """Attention with grouped keys and a gated feed-forward part, each behind a norm."""
    biased = bool(config.get("attention_bias"))
    return {
        "kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "activation": activation(config.get("hidden_act", "silu"), where, "hidden_act"),
        "bias": bool(config.get("mlp_bias")),
        "qkv_bias": biased,
        "out_bias": biased,
        "gated": True,
        "norm": "rms",
    }


def experts_of(config: Config, experts: str, **others: str) -> Config:
    """Experts by the names of a family: their number, and how many a token sees; ``others``: ours to theirs."""
    names = {"experts": experts, "experts_per_token": "num_experts_per_tok", **others}
    return {ours: config.get(theirs) or None for ours, theirs in names.items()}


def routed(experts: str, shared: str = "", dense: int | None = None) -> Reader:
    """Experts by the names of a family; ``dense``: first layers without them where the file says nothing."""

    def read(config: Config, where: str) -> Config:
        others = {"shared_experts": shared} if shared else {}
        made = experts_of(config, experts, **others)
        made["moe_ffn"] = config.get("moe_intermediate_size")
        if dense is not None:
            made["dense_layers"] = dense_layers(config, where, dense)
        return made

    return read


def _seed(config: Config, where: str) -> Config:
    return llama(config, where) | {"out_bias": bool(config["attention_out_bias"])}


def _qwen2_moe(config: Config, where: str) -> Config:
    key, width = "shared_expert_intermediate_size", config["moe_intermediate_size"]
    shared = as_wide(config, key, width, where)
    gate = {"shared_gate": True} if shared else {}
    made = _qwen3_moe(config, where) | {"qk_norm": None, "shared_experts": shared}
    return made | gate | {"qkv_bias": bool(config.get("qkv_bias", True))}


def _qwen3_moe(config: Config, where: str) -> Config:
    plain = list(config.get("mlp_only_layers") or [])
    if plain != list(range(len(plain))):
        expected, hint = "the first layers only", "others are not modelled"
        raise InputError.of(where, "mlp_only_layers", str(plain), expected, hint)
    return _ROUTED_QWEN3(config, where) | {
        "moe_every": config.get("decoder_sparse_step", 1),
        "dense_layers": len(plain) or None,
    }


def _minimax(config: Config, where: str) -> Config:
    wide = bool(config.get("use_qk_norm", True)) or None
    norms = {"qk_norm": wide, "qk_norm_wide": wide, "router_bias": True}
    return _MIXTRAL(config, where) | norms


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
    return {
        "qk_norm": bool(config.get("use_qk_norm")) or None,
        "router_bias": bool(config.get("moe_router_enable_expert_bias")),
    }


_WIDE = {"qk_norm": True, "qk_norm_wide": True}
#: Norms behind each part, and of queries and keys one over all heads.
_OLMO = made_of(llama, window, norms="behind", **_WIDE)
_QWEN3 = made_of(llama, qk_norm=True)
_MIXTRAL = made_of(llama, routed("num_local_experts"))
_ROUTED_QWEN3 = made_of(_QWEN3, routed("num_experts"))
_WINDOWED = made_of(_QWEN3, window)
_DOTS1 = made_of(_WINDOWED, routed("n_routed_experts", "n_shared_experts", 0))
_EXAONE = made_of(_WINDOWED, routed("num_experts", "num_shared_experts", 1))
_BAILING = made_of(llama, routed("num_experts", "num_shared_experts", 0), _bailing)
_FOURTH = {"sliding_window_pattern": 4}
_KEYS = {"num_key_value_heads": 8}
_ROUTED = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_GPT_OSS = {"num_local_experts": 128, "sliding_window": 128, "head_dim": 64}
_SEED = {"attention_bias": True, "attention_out_bias": False}
_MIXED = {"num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN2_MOE = {
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
}
QWEN2 = Family(LLAMA, made_of(llama, qkv_bias=True), {"num_key_value_heads": 32})
QWEN3 = Family(LLAMA, _QWEN3, {"num_key_value_heads": 32, "head_dim": 128})
QWEN3_MOE = Family(LLAMA, _qwen3_moe, {"num_key_value_heads": 4} | _ROUTED)
FAMILIES = {
    **dict.fromkeys(
        words("llama smollm3 phi3 exaone granite iquestcoder"),
        Family(LLAMA, llama),
    ),
    **dict.fromkeys(("mistral", "ministral3"), Family(LLAMA, llama, _KEYS)),
    "ministral": Family(LLAMA, made_of(llama, window), _KEYS),
    "dots1": Family(LLAMA, made_of(_DOTS1, router_bias=True)),
    "arcee": Family(LLAMA, made_of(_nemotron, norm="rms")),
    "mixtral": Family(LLAMA, _MIXTRAL, _KEYS | _MIXED),
    "seed_oss": Family(LLAMA, _seed, _SEED),
    # Text models of those that see have the layers of the others.
    **dict.fromkeys(
        words("qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text")
        + words("qwen2_5_omni_text"),
        QWEN2,
    ),
    "qwen2_moe": Family(LLAMA, _qwen2_moe, _QWEN2_MOE),
    **dict.fromkeys(("qwen3", "qwen3_vl_text"), QWEN3),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe_text"), QWEN3_MOE),
    "minimax_m2": Family(LLAMA, _minimax, {"head_dim": 128}),
    "gpt_oss": Family(LLAMA, _gpt_oss, _KEYS | _GPT_OSS),
    "nemotron": Family(LLAMA, _nemotron),
    **dict.fromkeys(("olmo2", "olmo3"), Family(LLAMA, _OLMO)),
    "olmoe": Family(LLAMA, made_of(llama, routed("num_experts"), **_WIDE)),
    "flex_olmo": Family(LLAMA, made_of(_OLMO, routed("num_experts"))),
    "exaone4": Family(LLAMA, made_of(_WINDOWED, norms="behind"), _FOURTH),
    "exaone_moe": Family(LLAMA, made_of(_EXAONE, router_bias=True), _FOURTH),
    **dict.fromkeys(("apertus", "apertus1p5_text"), Family(LLAMA, _apertus)),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), Family(LLAMA, _BAILING)),
}
REFUSED = {
    "minimax": "lightning attention",
    "bailing_hybrid": "lightning attention with decays by head",
    **dict.fromkeys(("jamba", "mamba", "falcon_mamba", "zamba"), "scans of Mamba-1"),
    **dict.fromkeys(("falcon_h1", "zamba2"), "scans that share a layer with attention"),
    "longcat_flash": "layers of two attentions, whose experts run beside the second",
    **dict.fromkeys(
        ("step3p5", "mimo_v2_flash"), "windowed layers with other heads than the rest"
    ),
    **dict.fromkeys(("olmo", "nanochat"), "norms without weights"),
    "bitnet": "norms within attention and feed-forward parts",
    "mllama_text_model": "layers that attend to a picture",
    "rwkv": "recurrences without attention",
    "xlstm": "recurrences without attention",
    "afmoe": "gates of attention from a projection of their own",
}
