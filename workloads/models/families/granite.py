"""Granite 3 of experts, and 4: Mamba-2 or attention, and experts with a shared one beside them, in every layer.

Source: transformers, models/granitemoehybrid/configuration_granitemoehybrid.py.
"""

from __future__ import annotations

from prestep.workloads.models.families import (
    FULL,
    Config,
    as_wide,
    layer_pattern,
)
from prestep.workloads.models.hybrid import ATTENTION, EXPERTS, FEED_FORWARD, MAMBA

#: Kinds of layers, and what transformers 5 calls them.
_LETTERS = {
    **dict.fromkeys(("mamba", "linear_attention"), MAMBA),
    **dict.fromkeys(("attention", FULL), ATTENTION),
}


def granite(config: Config, where: str) -> Config:
    """A hybrid of Mamba-2 and attention, with a feed-forward part or experts behind each."""
    kinds = config.get("layer_types") or []
    experts, width = config.get("num_local_experts"), config.get("intermediate_size")
    behind = (EXPERTS if experts else FEED_FORWARD) * len(kinds)
    rotary = config.get("position_embedding_type") == "rope"
    made = {
        "layer_pattern": layer_pattern(kinds, _LETTERS, behind, where),
        "positions": "rope" if rotary else "none",
    }
    if not experts:
        return made | {"ffn": config.get("shared_intermediate_size") or width}
    return made | {
        "moe_ffn": width,
        "experts": experts,
        "experts_per_token": config.get("num_experts_per_tok"),
        "shared_experts": as_wide(config, "shared_intermediate_size", width, where),
    }


def shared(config: Config, where: str) -> Config:
    """One more expert that every token sees, in Granite 3 of shared experts."""
    key, width = "shared_intermediate_size", config.get("intermediate_size")
    return {"shared_experts": as_wide(config, key, width, where)}
