"""Phi-1.5 and 2, whose parts are beside each other, and Phi-3.5-MoE, with layer norms.

Source: transformers, models/{phi,phimoe}/{configuration,modeling}_*.py.
"""

from __future__ import annotations

from prestep.sim.errors import InputError
from prestep.workloads.models.families import LLAMA, Config, Family, activation
from prestep.workloads.models.families.llama import experts_of, llama


def _phi(config: Config, where: str) -> Config:
    if config.get("qk_layernorm"):
        expected = "false: layer norms of queries and keys are not modelled"
        raise InputError.of(where, "qk_layernorm", "true", expected)
    return {
        "kv_heads": config.get("num_key_value_heads"),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "activation": activation(config["hidden_act"], where, "hidden_act"),
        "gated": False,
        "norm": "layer",
        "bias": True,
        "head_bias": True,
        "parallel_parts": True,
        "norms": "shared",
    }


def _phimoe(config: Config, where: str) -> Config:
    made = llama(config, where) | experts_of(config, "num_local_experts")
    head = bool(config.get("lm_head_bias"))
    return made | {"norm": "layer", "norm_bias": True, "head_bias": head}


_ROUTED = {"num_local_experts": 16, "num_experts_per_tok": 2, "num_key_value_heads": 8}
FAMILIES = {
    "phi": Family(LLAMA, _phi, {"hidden_act": "gelu_new", "qk_layernorm": False}),
    "phimoe": Family(LLAMA, _phimoe, _ROUTED),
}
