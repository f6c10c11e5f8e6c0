"""Hugging Face config.json of hybrids -> the keys of a model: Nemotron-H and -3, Qwen3-Next and -3.5, Kimi Linear.

A layer of Qwen3-Next, Qwen3.5 or Kimi Linear is two letters: what mixes tokens, and its feed-forward part or experts.
Source: transformers, models/{nemotron_h,qwen3_next}/configuration_*.py; Kimi Linear's own configuration_kimi.py.
"""

from __future__ import annotations

from functools import partial

from prestep.sim.errors import InputError
from prestep.workloads.models.families import (
    FULL,
    Config,
    as_wide,
    dense_layers,
    experts_of,
    layer_pattern,
)
from prestep.workloads.models.families.deepseek import latent
from prestep.workloads.models.hybrid import (
    ATTENTION,
    DELTA,
    EXPERTS,
    FEED_FORWARD,
    KIMI,
    MAMBA,
)

#: Kinds of Nemotron's layers in transformers 5, and before.
_NEMOTRON = {
    **dict.fromkeys(("linear_attention", "mamba"), MAMBA),
    **dict.fromkeys((FULL, "attention"), ATTENTION),
    "moe": EXPERTS,
    "mlp": FEED_FORWARD,
}


def nemotron_h(config: Config, where: str) -> Config:
    """Letters as Megatron has them."""
    activation = config.get("mlp_hidden_act", "relu2")
    if activation != "relu2":
        raise InputError.of(where, "mlp_hidden_act", repr(activation), '"relu2"')
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern:
        kinds = config.get("layer_types") or config.get("layers_block_type")
        pattern = layer_pattern(kinds, _NEMOTRON, "", where)
    made: Config = {
        "layer_pattern": pattern,
        "head_dim": config.get("head_dim", config.get("attention_head_dim")),
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


def _gated(config: Config, where: str, layers: int, behind: str = "") -> Config:
    """The gated delta rule, or attention in every n-th layer, and ``behind`` them what every layer of Qwen3.5 has.

    Qwen3-Next ("") has experts in every n-th layer, but for those that are named (Qwen3NextDecoderLayer).
    """
    every = config.get("full_attention_interval", 4)
    count = range(config.get("num_hidden_layers", layers))
    usual = [FULL if (at + 1) % every == 0 else "linear_attention" for at in count]
    kinds = config.get("layer_types") or usual
    if behind:
        parts = behind * len(kinds)
    else:
        parts = "".join(_behind(at, config) for at in range(len(kinds)))
    letters = {"linear_attention": DELTA, FULL: ATTENTION}
    made: Config = {
        "layer_pattern": layer_pattern(kinds, letters, parts, where),
        "head_dim": config.get("head_dim", 256),
    }
    made |= _experts(config, where) if EXPERTS in parts else {}
    return made | _delta_rule(config) if set(kinds) != {FULL} else made


def _behind(layer: int, config: Config) -> str:
    """What is behind a layer's mixer (transformers, Qwen3NextDecoderLayer)."""
    plain = config.get("mlp_only_layers") or ()
    every = config.get("decoder_sparse_step", 1)
    routed = config["num_experts"] > 0 and (layer + 1) % every == 0
    return EXPERTS if routed and layer not in plain else FEED_FORWARD


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
        "shared_gate": bool(config.get("shared_expert_intermediate_size")) or None,
        "router_narrow": True,
        "norm_topk": bool(config.get("norm_topk_prob", True)),
    }


def kimi_linear(config: Config, where: str) -> Config:
    """Latent attention in the layers that are named, Kimi delta attention in the others."""
    linear = config.get("linear_attn_config") or {}
    count = config.get("num_hidden_layers", 0)
    named = [
        "linear_attention" if layer in linear.get("kda_layers", ()) else FULL
        for layer in range(1, count + 1)
    ]
    kinds = named if linear else config.get("layer_types")
    dense = dense_layers(config, where, 0)
    behind = (FEED_FORWARD * dense + EXPERTS * count)[:count]
    letters = {"linear_attention": KIMI, FULL: ATTENTION}
    heads = linear.get("num_heads") or config.get("linear_num_heads")
    width = linear.get("head_dim") or config.get("linear_head_dim")
    number = "num_local_experts" if "num_local_experts" in config else "num_experts"
    chosen, shared = config.get("num_experts_per_token"), "n_shared_experts"
    shared = shared if shared in config else "num_shared_experts"
    return {
        "layer_pattern": layer_pattern(kinds, letters, behind, where),
        **latent(config),
        "positions": "none" if config.get("mla_use_nope") else "rope",
        "experts": config.get(number),
        "experts_per_token": chosen or config.get("num_experts_per_tok"),
        "moe_ffn": config.get("moe_intermediate_size"),
        "shared_experts": config.get(shared) or None,
        "linear_key_heads": heads,
        "linear_value_heads": heads,
        "linear_key_dim": width,
        "linear_value_dim": width,
        "conv_width": linear.get("short_conv_kernel_size")
        or config.get("linear_conv_kernel_dim", 4),
    }


#: Layers of the gated delta rule, and what each has behind it.
qwen3_next = partial(_gated, layers=48)
qwen3_5 = partial(_gated, layers=32, behind=FEED_FORWARD)
qwen3_5_moe = partial(_gated, layers=40, behind=EXPERTS)
