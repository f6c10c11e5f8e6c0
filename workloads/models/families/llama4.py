"""Llama 4: attention in chunks but for every fourth layer, and in every n-th layer experts with a shared one.

Norms of queries and keys, which have no weights, are left out.
Source: transformers, models/llama4/{configuration,modeling}_llama4.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import (
    FULL,
    LLAMA,
    SLIDING,
    Config,
    Family,
    window,
)
from prestep.workloads.models.families.llama import experts_of, llama


def _llama4(config: Config, where: str) -> Config:
    every, count = (
        config["interleave_moe_layer_step"],
        config.get("num_hidden_layers", 0),
    )
    layers = list(range(every - 1, count, every))
    if (said := config.get("moe_layers") or layers) != layers:
        expected = f"every {every}th layer, as interleave_moe_layer_step says"
        raise InputError.of(where, "moe_layers", repr(said)[:60], expected)
    return llama(config, where) | {
        **_chunks(config, where),
        **experts_of(config, "num_local_experts"),
        "moe_ffn": config.get("intermediate_size"),
        "moe_every": every,
        "shared_experts": 1,
    }


def _chunks(config: Config, where: str) -> Config:
    """Chunks as windows, which they equal for a sequence of one chunk."""
    kinds = config.get("layer_types") or [
        "chunked_attention" if rotated else FULL
        for rotated in config["no_rope_layers"] or ()
    ]
    size, every = config["attention_chunk_size"], config["no_rope_layer_interval"]
    as_windows = {
        "layer_types": [SLIDING if kind != FULL else FULL for kind in kinds],
        "sliding_window": size,
        "sliding_window_pattern": every,
    }
    made = window(config | as_windows, where)
    return made | {"chunked": True} if made else made


_USUAL = {
    "interleave_moe_layer_step": 1,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_chunk_size": 8192,
    "no_rope_layers": (),
    "no_rope_layer_interval": 4,
}
FAMILIES = {
    "llama4_text": Family(LLAMA | {"ffn": "intermediate_size_mlp"}, _llama4, _USUAL)
}
