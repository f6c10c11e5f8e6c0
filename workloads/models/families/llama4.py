"""Llama 4: attention in chunks but for every fourth layer, and in every n-th layer experts with a shared one.

Source: transformers, models/llama4/{configuration,modeling}_llama4.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import (
    FULL,
    SLIDING,
    Config,
    experts_of,
    window,
)


def llama4(config: Config, where: str) -> Config:
    """Windows that are chunks, and which layers have experts."""
    every, count = (
        config["interleave_moe_layer_step"],
        config.get("num_hidden_layers", 0),
    )
    layers = list(range(every - 1, count, every))
    if (said := config.get("moe_layers") or layers) != layers:
        expected = f"every {every}th layer, as interleave_moe_layer_step says"
        raise InputError.of(where, "moe_layers", repr(said)[:60], expected)
    routed = experts_of(config, "num_local_experts")
    return _chunks(config, where) | routed | {"moe_every": every}


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
