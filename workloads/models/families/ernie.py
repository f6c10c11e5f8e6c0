"""ERNIE 4.5, dense and of experts, whose words are tied.

Source: transformers, models/ernie4_5*/configuration_*.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import LLAMA, Config, Family
from prestep.workloads.models.families.llama import llama


def _ernie(config: Config, where: str) -> Config:
    biased = config.get("use_bias")
    made = llama(config | {"attention_bias": biased, "mlp_bias": biased}, where)
    return made | {"head_bias": bool(biased)}


def _ernie_moe(config: Config, where: str) -> Config:
    last = config["moe_layer_end_index"]
    if last not in (-1, config.get("num_hidden_layers", 0) - 1):
        expected, hint = "-1", "dense layers behind those of experts are not modelled"
        raise InputError.of(where, "moe_layer_end_index", str(last), expected, hint)
    return _ernie(config, where) | {
        "moe_ffn": config["moe_intermediate_size"],
        "experts": config["moe_num_experts"],
        "experts_per_token": config["moe_k"],
        "shared_experts": config["moe_num_shared_experts"] or None,
        "dense_layers": config["moe_layer_start_index"],
        "moe_every": config["moe_layer_interval"],
        "router_bias": True,
    }


_USUAL = {"tie_word_embeddings": True, "num_key_value_heads": 2, "head_dim": 128}
_ROUTED = {
    "tie_word_embeddings": True,
    "moe_intermediate_size": 1536,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}
FAMILIES = {
    "ernie4_5": Family(LLAMA, _ernie, _USUAL),
    "ernie4_5_moe": Family(LLAMA, _ernie_moe, _ROUTED),
}
