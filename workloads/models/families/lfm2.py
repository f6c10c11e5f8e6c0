"""LFM2: gated short convolutions, attention in some layers, and a feed-forward part or experts behind each.

Source: transformers, models/{lfm2,lfm2_moe}/{configuration,modeling}_*.py.
"""

from __future__ import annotations

from prestep.workloads.models.families import (
    FULL,
    Config,
    experts_of,
    layer_pattern,
)
from prestep.workloads.models.hybrid import (
    ATTENTION,
    CONVOLUTION,
    EXPERTS,
    FEED_FORWARD,
)

_LETTERS = {"conv": CONVOLUTION, FULL: ATTENTION}


def _layers(config: Config, where: str, dense: int | None = None) -> Config:
    """Layers, of which the first ones (None: all) have no experts."""
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


def lfm2(config: Config, where: str) -> Config:
    """Layers without experts, whose width may be adjusted to a unit."""
    width = config.get("block_ff_dim", config.get("intermediate_size"))
    if config["block_auto_adjust_ff_dim"] and isinstance(width, int):
        unit = config["block_multiple_of"]
        width = int(config["block_ffn_dim_multiplier"] * int(2 * width / 3))
        width = -(-width // unit) * unit
    return _layers(config, where) | {"ffn": width}


def lfm2_moe(config: Config, where: str) -> Config:
    """Layers whose first ones have no experts."""
    made = _layers(config, where, config["num_dense_layers"])
    return made | experts_of(config, "num_experts")
