"""Hugging Face config.json of hybrids -> the keys of a model: Nemotron-H and -3, Qwen3-Next and -3.5, Kimi Linear.

A layer of Qwen3-Next, Qwen3.5 or Kimi Linear is two letters: what mixes tokens, and its feed-forward part or experts.
Source: transformers, models/{nemotron_h,qwen3_next}/configuration_*.py; Kimi Linear's own configuration_kimi.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from prestep.sim.errors import InputError
from prestep.workloads.models.families import HYBRID, Config, Family, as_wide
from prestep.workloads.models.families.llama import experts_of
from prestep.workloads.models.hybrid import (
    ATTENTION,
    DELTA,
    EXPERTS,
    FEED_FORWARD,
    KIMI,
)


def _shared(config: Config, where: str) -> Config:
    if config.get("attention_bias") or config.get("mlp_bias"):
        expected = "false: hybrids with biases are not modelled"
        raise InputError.of(where, "attention_bias", "true", expected)
    return {
        "kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "norm": "rms",
    }


def nemotron_h(config: Config, where: str) -> Config:
    """Letters as Megatron has them."""
    activation = config.get("mlp_hidden_act", "relu2")
    if activation != "relu2":
        raise InputError.of(where, "mlp_hidden_act", repr(activation), '"relu2"')
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern:
        expected = "a letter for each layer"
        raise InputError.of(where, "hybrid_override_pattern", repr(pattern), expected)
    made = _shared(config, where) | {
        "layer_pattern": pattern,
        "head_dim": config.get("head_dim", config.get("attention_head_dim")),
        "activation": "relu2",
        "gated": False,
        "positions": "none",
        "mamba_heads": config.get("mamba_num_heads", 128),
        "mamba_head_dim": config.get("mamba_head_dim", 64),
        "mamba_state": config.get("ssm_state_size", 128),
        "mamba_groups": config.get("n_groups", 8),
        "conv_width": config.get("conv_kernel", 4),
        "mtp_layers": config.get("num_nextn_predict_layers") or None,
    }
    if EXPERTS not in pattern:
        return made
    width = config.get("moe_intermediate_size")
    return made | {
        **experts_of(config, "n_routed_experts"),
        "moe_ffn": width,
        "moe_latent": config.get("moe_latent_size") or None,
        "shared_experts": as_wide(
            config, "moe_shared_expert_intermediate_size", width, where
        ),
        "router_bias": True,
    }


def qwen3_next(config: Config, where: str) -> Config:
    """Experts, or a plain feed-forward part, behind the gated delta rule and attention."""
    mixers = _mixers(config, where, 48)
    behind = [_behind(layer, config) for layer in range(len(mixers))]
    made = _gated(config, where, mixers, behind)
    return made | _experts(config, where) if EXPERTS in behind else made


def _behind(layer: int, config: Config) -> str:
    """What is behind a layer's mixer (transformers, Qwen3NextDecoderLayer)."""
    plain = config.get("mlp_only_layers") or ()
    every = config.get("decoder_sparse_step", 1)
    routed = config["num_experts"] > 0 and (layer + 1) % every == 0
    return EXPERTS if routed and layer not in plain else FEED_FORWARD


def qwen3_5(config: Config, where: str) -> Config:
    """Qwen3.5's text model: that of Qwen3-Next with feed-forward layers."""
    mixers = _mixers(config, where, 32)
    return _gated(config, where, mixers, FEED_FORWARD * len(mixers))


def qwen3_5_moe(config: Config, where: str) -> Config:
    """Qwen3.5's text model with experts."""
    mixers = _mixers(config, where, 40)
    made = _gated(config, where, mixers, EXPERTS * len(mixers))
    return made | _experts(config, where)


def _mixers(config: Config, where: str, layers: int) -> str:
    """A letter for each layer: every `full_attention_interval`-th attends, the others have the gated delta rule."""
    kinds = config.get("layer_types") or [
        "linear_attention"
        if (layer + 1) % config.get("full_attention_interval", 4)
        else "full_attention"
        for layer in range(config.get("num_hidden_layers", layers))
    ]
    letters = {"linear_attention": DELTA, "full_attention": ATTENTION}
    if strange := sorted(set(kinds) - set(letters)):
        expected = " or ".join(letters)
        raise InputError.of(where, "layer_types", strange[0], expected)
    return "".join(letters[kind] for kind in kinds)


def _gated(config: Config, where: str, mixers: str, behind: Iterable[str]) -> Config:
    """Layers of a mixer and what is behind it."""
    made = _shared(config, where) | {
        "layer_pattern": "".join(map("".join, zip(mixers, behind, strict=True))),
        "head_dim": config.get("head_dim", 256),
        "qk_norm": True,
        "attention_gate": True,
    }
    return made | _delta_rule(config) if DELTA in mixers else made


def _delta_rule(config: Config) -> Config:
    """Sizes of the gated delta rule."""
    return {
        "linear_key_heads": config.get("linear_num_key_heads", 16),
        "linear_value_heads": config.get("linear_num_value_heads", 32),
        "linear_key_dim": config.get("linear_key_head_dim", 128),
        "linear_value_dim": config.get("linear_value_head_dim", 128),
        "conv_width": config.get("linear_conv_kernel_dim", 4),
    }


def _experts(config: Config, where: str) -> Config:
    """Routed experts and a shared one."""
    width = config.get("moe_intermediate_size", 512)
    return {
        **experts_of(config, "num_experts"),
        "moe_ffn": width,
        "shared_experts": as_wide(
            config, "shared_expert_intermediate_size", width, where
        ),
    }


def kimi_linear(config: Config, where: str) -> Config:
    """Latent attention in the layers that are named, Kimi delta attention in the others."""
    linear = config.get("linear_attn_config")
    if not isinstance(linear, dict) or "kda_layers" not in linear:
        expected = "an object with kda_layers"
        raise InputError.of(where, "linear_attn_config", repr(linear), expected)
    dense = config.get("first_k_dense_replace", 0)
    pattern = ""
    for layer in range(config.get("num_hidden_layers", 0)):
        pattern += KIMI if layer + 1 in linear["kda_layers"] else ATTENTION
        pattern += FEED_FORWARD if layer < dense else EXPERTS
    return {
        "layer_pattern": pattern,
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "norm": "rms",
        "head_dim": config.get("qk_nope_head_dim", 128),
        "kv_lora_rank": config.get("kv_lora_rank", 512),
        "q_lora_rank": config.get("q_lora_rank"),
        "rope_head_dim": config.get("qk_rope_head_dim", 64),
        "v_head_dim": config.get("v_head_dim", 128),
        "positions": "none" if config.get("mla_use_nope") else "rope",
        "experts": config.get("num_experts"),
        "experts_per_token": config.get("num_experts_per_token"),
        "moe_ffn": config.get("moe_intermediate_size"),
        "shared_experts": config.get("num_shared_experts") or None,
        "router_bias": True,
        "linear_key_heads": linear.get("num_heads"),
        "linear_value_heads": linear.get("num_heads"),
        "linear_key_dim": linear.get("head_dim"),
        "linear_value_dim": linear.get("head_dim"),
        "conv_width": linear.get("short_conv_kernel_size", 4),
    }


_NEXT = {"num_experts": 512, "num_experts_per_tok": 10}
_ROUTED = {"num_experts": 256, "num_experts_per_tok": 8}
FAMILIES = {
    "nemotron_h": Family(HYBRID, nemotron_h),
    "qwen3_next": Family(HYBRID, qwen3_next, _NEXT),
    "kimi_linear": Family(HYBRID, kimi_linear),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text"), Family(HYBRID, qwen3_5)),
    **dict.fromkeys(
        ("qwen3_5_moe", "qwen3_5_moe_text"),
        Family({**HYBRID, "ffn": "moe_intermediate_size"}, qwen3_5_moe, _ROUTED),
    ),
}
