"""GLM-4 and 4.5: queries, keys and values with biases; norms around each part in GLM-4-0414.

Source: transformers, models/{glm,glm4,glm4_moe,solar_open}/configuration_*.py.
"""

from __future__ import annotations

from prestep.workloads.models.families import LLAMA, Config, Family
from prestep.workloads.models.families.llama import experts_of, llama


def _glm(config: Config, where: str) -> Config:
    return llama(config, where) | {"out_bias": False}


def _glm4(config: Config, where: str) -> Config:
    return _glm(config, where) | {"norms": "around"}


def _glm4_moe(config: Config, where: str) -> Config:
    return _glm(config, where) | {
        "qk_norm": bool(config.get("use_qk_norm")) or None,
        "moe_ffn": config.get("moe_intermediate_size"),
        **experts_of(config, "n_routed_experts", shared_experts="n_shared_experts"),
        "dense_layers": config.get("first_k_dense_replace") or None,
        "router_bias": True,
    }


_BIASED = {"attention_bias": True, "head_dim": 128, "num_key_value_heads": 2}
_ROUTED = {
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
}
_MOE = Family(
    LLAMA, _glm4_moe, _ROUTED | {"attention_bias": True, "first_k_dense_replace": 1}
)
FAMILIES = {
    "glm": Family(LLAMA, _glm, _BIASED),
    **dict.fromkeys(("glm4", "glm4v_text"), Family(LLAMA, _glm4, _BIASED)),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text"), _MOE),
    # Every layer has experts: its file says no width of dense ones.
    "solar_open": Family(
        LLAMA | {"ffn": "moe_intermediate_size"}, _glm4_moe, _ROUTED | {"head_dim": 128}
    ),
}
