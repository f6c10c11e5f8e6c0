"""GLM-4 and 4.5: queries, keys and values with biases; norms around each part in GLM-4-0414.

Source: transformers, models/{glm,glm4,glm4_moe,solar_open}/configuration_*.py.
"""

from __future__ import annotations

from prestep.workloads.models.families import LLAMA, Config, Family, made_of
from prestep.workloads.models.families.llama import llama, routed


def _normed(config: Config, where: str) -> Config:
    return {"qk_norm": bool(config.get("use_qk_norm")) or None}


_GLM = made_of(llama, out_bias=False)
_EXPERTS = routed("n_routed_experts", "n_shared_experts", 0)
_GLM4_MOE = made_of(_GLM, _normed, _EXPERTS, router_bias=True)
_GLM4 = made_of(_GLM, norms="around")
_BIASED = {"attention_bias": True, "head_dim": 128, "num_key_value_heads": 2}
_ROUTED = {
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
}
_MOE = Family(
    LLAMA, _GLM4_MOE, _ROUTED | {"attention_bias": True, "first_k_dense_replace": 1}
)
FAMILIES = {
    "glm": Family(LLAMA, _GLM, _BIASED),
    **dict.fromkeys(("glm4", "glm4v_text"), Family(LLAMA, _GLM4, _BIASED)),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text"), _MOE),
    # Every layer has experts: its file says no width of dense ones.
    "solar_open": Family(
        LLAMA | {"ffn": "moe_intermediate_size"}, _GLM4_MOE, _ROUTED | {"head_dim": 128}
    ),
}
