"""Hugging Face config.json of families of 2025 and 2026, and why others are not read.

Read are those whose layers are made of blocks that are known: OLMo 2 and 3, Apertus, Bailing's mixtures of experts,
Granite 4's hybrids. Norms behind a part in place of before it (OLMo) are as many, of the same width. Apertus's xIELU
counts as one elementwise kernel, as its extension for CUDA is. Source: transformers, models/*/configuration_*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prestep.sim.errors import InputError, Mistake
from prestep.workloads.models.hybrid import (
    ATTENTION,
    EXPERTS,
    FEED_FORWARD,
    MAMBA,
)
from prestep.workloads.models.indexed import pattern_of

Reader = Callable[[dict[str, Any], str], dict[str, Any]]
#: Families that are not read -> what their layers have that is not simulated.
REASONS: Mapping[str, str] = {
    "gemma2": "a norm behind each part as well as before it, and capped scores",
    "gemma3": "a norm behind each part as well as before it",
    "gemma3_text": "a norm behind each part as well as before it",
    "falcon": "attention and feed-forward beside each other, behind one norm",
    "lfm2": "short convolutions with gates in place of attention",
    "lfm2_moe": "short convolutions with gates in place of attention",
    "minimax": "lightning attention",
}
#: Kinds of layers in lists of them.
FULL, SLIDING = "full_attention", "sliding_attention"
#: Granite's, and what transformers 5 calls them.
LETTERS = {
    "mamba": MAMBA,
    "linear_attention": MAMBA,
    "attention": ATTENTION,
    FULL: ATTENTION,
}


#: Text models of families with towers, by their own model_type -> the family that has the same layers.
WITH_TOWERS = {
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}


def text_family(family: str, config: Mapping[str, Any]) -> object:
    """The family of the text model in a configuration that has one; else the family itself."""
    inner = config.get("text_config")
    own = inner.get("model_type", family) if isinstance(inner, dict) else family
    return WITH_TOWERS.get(str(own), own)


def refused(family: str, config: Mapping[str, Any], where: str) -> Mistake | None:
    """Why a family is not read, as far as that is known; None of one that nobody has looked at."""
    inner = config.get("text_config")
    if family not in REASONS and isinstance(inner, dict):
        family = str(inner.get("model_type"))
    if family not in REASONS:
        return None
    hint = f"{REASONS[family]}: not simulated"
    return Mistake(where, "model_type", f'"{family}"', "layers that are known", hint)


def _window(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A window of all layers but every n-th."""
    kinds = config.get("layer_types") or []
    size = config.get("sliding_window")
    if SLIDING not in kinds or not size:
        return {}
    every = kinds.index(FULL) + 1 if FULL in kinds else None
    wanted = [
        FULL if every and (at + 1) % every == 0 else SLIDING for at in range(len(kinds))
    ]
    if kinds != wanted:
        expected = f"{FULL} every n-th layer, {SLIDING} elsewhere"
        raise InputError.of(where, "layer_types", "another order", expected)
    return {"window": size, "window_every": every}


def readers(llama: Reader, deepseek: Reader) -> dict[str, Reader]:
    """Readers by family; ``llama`` and ``deepseek``: those of their keys."""

    def olmo(config: dict[str, Any], where: str) -> dict[str, Any]:
        plain = {"mlp_bias": config.get("attention_bias")}
        return llama(config | plain, where) | {"qk_norm": True} | _window(config, where)

    def apertus(config: dict[str, Any], where: str) -> dict[str, Any]:
        if config.get("hidden_act", "xielu") != "xielu":
            found = repr(config["hidden_act"])
            raise InputError.of(where, "hidden_act", found, '"xielu"')
        made = llama(config | {"hidden_act": "gelu"}, where)
        return made | {"gated": False, "qk_norm": True}

    def bailing(config: dict[str, Any], where: str) -> dict[str, Any]:
        bias = bool(config.get("use_bias") or config.get("use_qkv_bias"))
        if bias:
            expected = "false: biases of some layers only are not modelled"
            raise InputError.of(where, "use_qkv_bias", "true", expected)
        return llama(config, where) | {
            "qk_norm": bool(config.get("use_qk_norm")) or None,
            "moe_ffn": config.get("moe_intermediate_size"),
            "experts": config.get("num_experts"),
            "experts_per_token": config.get("num_experts_per_tok"),
            "shared_experts": config.get("num_shared_experts") or None,
            "dense_layers": config.get("first_k_dense_replace") or None,
            "router_bias": bool(config.get("moe_router_enable_expert_bias")),
        }

    def sparse(config: dict[str, Any], where: str) -> dict[str, Any]:
        kinds = list(config.get("mlp_layer_types") or ())
        dense = kinds.index("sparse") if "sparse" in kinds else len(kinds) or 3
        usual = {"first_k_dense_replace": dense, "topk_method": "noaux_tc"}
        return deepseek(usual | config, where) | _indexer(config)

    return {
        "deepseek_v32": sparse,
        "glm_moe_dsa": sparse,
        "olmo2": olmo,
        "olmo3": olmo,
        "apertus": apertus,
        "bailing_moe": bailing,
        "bailing_moe_v2": bailing,
    }


def _indexer(config: Mapping[str, Any]) -> dict[str, Any]:
    """The indexer of sparse attention, and which layers have one (GlmMoeDsaConfig; DeepSeek's all have)."""
    kinds = config.get("indexer_types") or config.get("index_topk_pattern") or ()
    heads = 32 if config.get("model_type") == "glm_moe_dsa" else 64
    every = max(config.get("index_topk_freq") or 1, 1)
    first = config.get("index_skip_topk_offset", 2)
    pattern = pattern_of(config["num_hidden_layers"], every, first, kinds)
    return {
        "index_heads": config.get("index_n_heads", heads),
        "index_head_dim": config.get("index_head_dim"),
        "index_topk": config.get("index_topk", 2048),
        "index_pattern": pattern or None,
    }


def granite(config: dict[str, Any], where: str) -> dict[str, Any]:
    """Mamba-2 or attention, and experts with a shared one beside them, in every layer."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or not set(kinds) <= LETTERS.keys():
        expected = 'a list of "mamba" and "attention"'
        raise InputError.of(where, "layer_types", repr(kinds)[:60], expected)
    experts, width = config.get("num_local_experts"), config.get("intermediate_size")
    shared = config.get("shared_intermediate_size") or 0
    part = EXPERTS if experts else FEED_FORWARD
    pattern = "".join(LETTERS[one] + part for one in kinds)
    made = {
        "layer_pattern": pattern,
        "kv_heads": config.get("num_key_value_heads"),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "norm": "rms",
        "gated": True,
        "activation": "silu",
        "positions": "rope"
        if config.get("position_embedding_type") == "rope"
        else "none",
        "mamba_heads": config.get("mamba_n_heads"),
        "mamba_head_dim": config.get("mamba_d_head"),
        "mamba_state": config.get("mamba_d_state"),
        "mamba_groups": config.get("mamba_n_groups"),
        "conv_width": config.get("mamba_d_conv"),
    }
    if not experts:
        return made | {"ffn": shared or width}
    if not width or shared % width:
        expected = f"a multiple of an expert's width, {width}"
        raise InputError.of(where, "shared_intermediate_size", str(shared), expected)
    return made | {
        "moe_ffn": width,
        "experts": experts,
        "experts_per_token": config.get("num_experts_per_tok"),
        "shared_experts": shared // width or None,
    }
