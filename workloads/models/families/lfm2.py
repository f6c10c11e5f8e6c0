"""LFM2: gated short convolutions, attention in some layers, and a feed-forward part or experts behind each.

Source: transformers, models/{lfm2,lfm2_moe}/{configuration,modeling}_*.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import (
    FULL,
    HYBRID,
    Config,
    Family,
    layer_pattern,
)
from prestep.workloads.models.families.llama import experts_of
from prestep.workloads.models.hybrid import (
    ATTENTION,
    CONVOLUTION,
    EXPERTS,
    FEED_FORWARD,
)

_LETTERS = {"conv": CONVOLUTION, FULL: ATTENTION}


def _layers(config: Config, where: str, dense: int | None = None) -> Config:
    """Layers, of which the first ones (None: all) have no experts."""
    if config.get("conv_bias"):
        expected = "false: convolutions with biases are not modelled"
        raise InputError.of(where, "conv_bias", "true", expected)
    layers = range(config.get("num_hidden_layers", 0))
    chosen = config.get("full_attn_idxs")
    chosen = layers if chosen is None else chosen
    usual = [FULL if at in chosen else "conv" for at in layers]
    kinds = config.get("layer_types") or usual
    plain = len(kinds) if dense is None else dense
    behind = (FEED_FORWARD * plain + EXPERTS * len(kinds))[: len(kinds)]
    return {
        "layer_pattern": layer_pattern(kinds, _LETTERS, behind, where),
        "kv_heads": config.get("num_key_value_heads"),
        "tied_embeddings": config.get("tie_embedding", config["tie_word_embeddings"]),
        "qk_norm": FULL in kinds or None,
        "conv_width": config["conv_L_cache"] if "conv" in kinds else None,
    }


def _lfm2(config: Config, where: str) -> Config:
    width = config.get("block_ff_dim", config.get("intermediate_size"))
    if config["block_auto_adjust_ff_dim"] and isinstance(width, int):
        unit = config["block_multiple_of"]
        width = int(config["block_ffn_dim_multiplier"] * int(2 * width / 3))
        width = -(-width // unit) * unit
    return _layers(config, where) | {"ffn": width}


def _lfm2_moe(config: Config, where: str) -> Config:
    made = _layers(config, where, config["num_dense_layers"])
    return made | {
        "moe_ffn": config["moe_intermediate_size"],
        "router_bias": bool(config["use_expert_bias"]),
        **experts_of(config, "num_experts"),
    }


_USUAL = {"num_key_value_heads": 8, "conv_L_cache": 3, "tie_word_embeddings": True}
_ADJUSTED = {
    "block_auto_adjust_ff_dim": True,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
}
_ROUTED = {
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1792,
    "use_expert_bias": True,
}
FAMILIES = {
    "lfm2": Family(HYBRID, _lfm2, _USUAL | _ADJUSTED),
    "lfm2_moe": Family(HYBRID, _lfm2_moe, _USUAL | _ROUTED),
}
